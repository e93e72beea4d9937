//! An OpenAPI document and the files beside it that it refers to.
//!
//! A reference without a target is an error: its target may be the hole.
//!
//! Deliberately absent: references to other hosts, and to files outside the document's folder.

use std::{
    collections::HashMap,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, bail};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::yaml;

/// The maximum size of the document with all files that it refers to, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// The maximum number of files.
const MAX_FILES: usize = 1_000;
/// The longest chain of references.
const MAX_REFERENCES: usize = 16;

/// A value, and the file that contains it, from which its references are resolved.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) value: Value,
    file: PathBuf,
}

impl Placed {
    /// A part of the value, in the same file.
    fn part(&self, value: &Value) -> Self {
        Self {
            value: value.clone(),
            file: self.file.clone(),
        }
    }
}

/// The files that were read, by their paths within the document's folder.
pub(super) struct Documents {
    folder: PathBuf,
    files: HashMap<PathBuf, Value>,
    bytes: u64,
}

impl Documents {
    /// Reads the document at `path`.
    pub(super) fn open(path: &Path) -> anyhow::Result<(Self, Placed)> {
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        let file = PathBuf::from(path.file_name().unwrap_or(path.as_os_str()));
        let mut documents = Self {
            folder: folder.to_owned(),
            files: HashMap::new(),
            bytes: 0,
        };
        let value = documents.read(&file)?.clone();
        Ok((documents, Placed { value, file }))
    }

    /// A document that refers to no other file.
    #[cfg(test)]
    pub(super) fn alone(value: Value) -> (Self, Placed) {
        let file = PathBuf::from("api");
        let documents = Self {
            folder: PathBuf::from("/nonexistent"),
            files: HashMap::from([(file.clone(), value.clone())]),
            bytes: 0,
        };
        (documents, Placed { value, file })
    }

    fn read(&mut self, file: &Path) -> anyhow::Result<&Value> {
        if !self.files.contains_key(file) {
            let path = self.folder.join(file);
            let name = || path.display().to_string();
            let found = std::fs::metadata(&path).with_context(name)?;
            if !found.is_file() {
                bail!("{}: this is not a file", name());
            }
            self.bytes = self.bytes.saturating_add(found.len());
            if self.bytes > MAX_BYTES {
                bail!("{}: larger than {MAX_BYTES} bytes in all", name());
            }
            if self.files.len() >= MAX_FILES {
                bail!("{}: more than {MAX_FILES} files", name());
            }
            let text = std::fs::read_to_string(&path).with_context(name)?;
            let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
            let value = match text.trim_start().starts_with('{') {
                true => serde_json::from_str(text).with_context(name)?,
                false => yaml::parse(text).with_context(name)?,
            };
            self.files.insert(file.to_owned(), value);
        }
        Ok(&self.files[file])
    }

    /// The members of an object; if it has a `$ref`, also those of its target, after its own.
    pub(super) fn members(&mut self, object: &Placed) -> anyhow::Result<Members> {
        let mut members = Members(Vec::new());
        let mut object = object.clone();
        for _ in 0..MAX_REFERENCES {
            for (name, value) in object.value.as_object().into_iter().flatten() {
                if name != "$ref" && members.get(name).is_none() {
                    members.0.push((name.clone(), object.part(value)));
                }
            }
            match self.target(&object)? {
                Some(target) => object = target,
                None => return Ok(members),
            }
        }
        bail!("more than {MAX_REFERENCES} references lead to one another")
    }

    /// The target of a `$ref`, if there is one.
    fn target(&mut self, from: &Placed) -> anyhow::Result<Option<Placed>> {
        let Some(reference) = from.value.get("$ref") else {
            return Ok(None);
        };
        let Some(reference) = reference.as_str() else {
            bail!("{}: a `$ref` must be a text", from.file.display());
        };
        let found = self.follow(&from.file, reference);
        let file = from.file.display();
        Ok(Some(found.with_context(|| {
            format!("{file}: the reference `{reference}` cannot be followed")
        })?))
    }

    fn follow(&mut self, from: &Path, reference: &str) -> anyhow::Result<Placed> {
        let (file, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let file = match file {
            "" => from.to_owned(),
            file => beside(from, file)?,
        };
        let document = self.read(&file)?;
        let decoded = percent_decode_str(fragment).decode_utf8_lossy();
        let found = document.pointer(&decoded);
        let Some(found) = found.or_else(|| document.pointer(fragment)) else {
            bail!("it leads nowhere");
        };
        let value = found.clone();
        Ok(Placed { value, file })
    }
}

/// The path of a file that `from` refers to, within the document's folder.
fn beside(from: &Path, name: &str) -> anyhow::Result<PathBuf> {
    if name.contains("://") || name.starts_with("//") {
        bail!("it leads to another host; put all parts of the document into one folder");
    }
    let name = percent_decode_str(name).decode_utf8_lossy().into_owned();
    let mut path = from.parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(&name).components() {
        let inside = match part {
            Component::Normal(part) => {
                path.push(part);
                true
            }
            Component::CurDir => true,
            Component::ParentDir => path.pop(),
            Component::RootDir | Component::Prefix(_) => false,
        };
        if !inside {
            bail!("it leads out of the document's folder; put all parts of the document into it");
        }
    }
    Ok(path)
}

/// The members of an object, in order, each with the file that contains it.
pub(super) struct Members(Vec<(String, Placed)>);

impl Members {
    pub(super) fn get(&self, name: &str) -> Option<&Placed> {
        let mut members = self.0.iter();
        members
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    /// The value of a member; null if there is none.
    pub(super) fn value(&self, name: &str) -> &Value {
        self.get(name).map_or(&Value::Null, |placed| &placed.value)
    }

    /// The items of a list.
    pub(super) fn items(&self, name: &str) -> Vec<Placed> {
        let Some(list) = self.get(name) else {
            return Vec::new();
        };
        let items = list.value.as_array().into_iter().flatten();
        items.map(|item| list.part(item)).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Placed)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beside() {
        let from = Path::new("paths/pay.yaml");
        for (name, expected) in [
            ("x.yaml", Some("paths/x.yaml")),
            ("./x.yaml", Some("paths/x.yaml")),
            ("../a/x%20y.yaml", Some("a/x y.yaml")),
            ("../../x.yaml", None),
            ("%2e%2e/../x.yaml", None),
            ("/etc/passwd", None),
            ("https://api.example/x.yaml", None),
            ("//api.example/x.yaml", None),
        ] {
            let found = beside(from, name).ok();
            assert_eq!(found, expected.map(PathBuf::from), "{name}");
        }
    }
}
