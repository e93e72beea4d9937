//! What the documents say about configurations: the examples are good, and the reference names every
//! field.

use super::*;
use serde_json::Value as Json;

use crate::config::{
    fields::{ALL, Schema},
    schema,
};

pub(super) fn docs() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Every file under `folder` with this ending.
fn files(folder: &Path, ending: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|end| end == ending) {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_example_is_good() {
    let examples = files(&docs(), "yaml");
    assert!(examples.len() >= 3, "{examples:?}");
    let env = |name: &str| match name {
        "LISTEN" => Some("127.0.0.1:0".to_owned()),
        "FOLDER" => Some("/tmp".to_owned()),
        "API" => Some("http://127.0.0.1:1".to_owned()),
        _ => None,
    };
    // Their secrets are nobody's business here.
    let overrides = Overrides {
        no_env: true,
        ..Overrides::default()
    };
    for path in examples {
        let text = fs::read_to_string(&path).unwrap();
        if let Err(found) = parse("example.yaml", &text, &env, &overrides) {
            panic!("{}\n{found}", path.display());
        }
    }
}

/// A folder with a certificate.
fn certificates() -> String {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../onlyonce-cli/tests/http/verify/tls");
    folder.display().to_string()
}

/// The YAML blocks of the pages, those without routes with one.
fn blocks() -> Vec<String> {
    let route = "\nroutes: [{ id: r, path: /, backends: [{ url: \"http://127.0.0.1:1\" }] }]\n";
    let mut found = Vec::new();
    for page in files(&docs(), "md") {
        let text = fs::read_to_string(page).unwrap();
        for block in text.split("\n```yaml\n").skip(1) {
            let (block, _) = block.split_once("\n```").unwrap();
            // Certificates are read when the file is.
            let block = block.replace("/etc/onlyonce/tls", &certificates());
            let routes = if block.contains("routes:") { "" } else { route };
            found.push(format!("{block}{routes}"));
        }
    }
    found
}

#[test]
fn every_block_in_the_pages_is_good() {
    let blocks = blocks();
    assert!(blocks.len() >= 6, "{}", blocks.len());
    for block in blocks {
        good(&block);
    }
}

/// The text below the heading, up to the next one of its level.
fn section<'t>(page: &'t str, heading: &str) -> &'t str {
    let heading = format!("\n## {heading}\n");
    let (_, rest) = page
        .split_once(&heading)
        .unwrap_or_else(|| panic!("no section{heading}"));
    rest.split_once("\n## ").map_or(rest, |(text, _)| text)
}

/// `a route` is under `A route`.
fn heading(schema: &Schema) -> String {
    let (first, rest) = schema.name.split_at(1);
    first.to_uppercase() + rest
}

/// A section's table in the reference.
fn table(schema: &Schema) -> String {
    let mut table = "| field | type | default | meaning |\n|---|---|---|---|\n".to_owned();
    for field in schema.fields {
        for cell in [
            &format!("`{}`", field.name),
            &field.kind.words(),
            field.default,
            field.about,
        ] {
            let space = if cell.is_empty() { "" } else { " " };
            table.push_str(&format!("|{space}{cell} "));
        }
        table.push_str("|\n");
    }
    table
}

/// The tables are made from the fields; `ONLYONCE_WRITE_DOCS=1` writes them anew.
#[test]
fn the_reference_names_every_field() {
    let path = docs().join("reference/config.md");
    let mut page = fs::read_to_string(&path).unwrap();
    let writes = std::env::var_os("ONLYONCE_WRITE_DOCS").is_some();
    for schema in ALL {
        let text = section(&page, &heading(schema)).to_owned();
        let begins = text.find("| field | type |").expect("a table of fields");
        let written = &text[begins..];
        let ends = written.find("\n\n").map_or(written.len(), |end| end + 1);
        let (written, made) = (&written[..ends], table(schema));
        if writes {
            page = page.replacen(written, &made, 1);
        } else {
            assert_eq!(written, made, "the fields of {}", schema.name);
        }
    }
    if writes {
        fs::write(path, page).unwrap();
    }
}

/// Made anew with `ONLYONCE_WRITE_DOCS=1`.
#[test]
fn the_schema_is_checked_in() {
    let path = docs().join("reference/config.schema.json");
    if std::env::var_os("ONLYONCE_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{:#}\n", schema::schema())).unwrap();
    }
    let written: Json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert!(
        written == schema::schema(),
        "docs/reference/config.schema.json is not what the code says; write it anew"
    );
}

/// A tree as a JSON Schema sees it.
fn json(node: &Node) -> Json {
    match &node.value {
        Value::Null | Value::Broken => Json::Null,
        Value::Scalar(scalar) => match scalar.text.as_str() {
            "true" => true.into(),
            "false" => false.into(),
            text => text.parse::<i64>().map_or_else(|_| text.into(), Json::from),
        },
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(entries) => entries
            .iter()
            .map(|entry| (entry.key.clone(), json(&entry.node)))
            .collect(),
    }
}

/// What `rule` of the schema `all` has against `value`; as much of JSON Schema as ours uses, and of
/// patterns only the one for variables.
fn complaint(all: &Json, rule: &Json, value: &Json, place: &str) -> Option<String> {
    if let Some(name) = rule["$ref"].as_str() {
        let rule = &all["$defs"][name.strip_prefix("#/$defs/").unwrap()];
        assert!(rule.is_object(), "{name} is defined");
        if name == "#/$defs/variable" {
            let is_one = value.as_str().is_some_and(|text| text.contains("${"));
            return (!is_one).then(|| format!("{place}: {value} is no variable"));
        }
        return complaint(all, rule, value, place);
    }
    if let Some(rules) = rule["anyOf"].as_array() {
        let all_complain = rules
            .iter()
            .all(|rule| complaint(all, rule, value, place).is_some());
        return all_complain.then(|| format!("{place}: {value} is none of {rules:?}"));
    }
    if let Some(words) = rule["enum"].as_array() {
        return (!words.contains(value)).then(|| format!("{place}: {value} is not in {words:?}"));
    }
    let kind = match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "integer",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    };
    let allowed = match &rule["type"] {
        Json::Array(kinds) => kinds.contains(&kind.into()),
        one => *one == kind,
    };
    if !allowed {
        return Some(format!("{place}: {value} is not {}", rule["type"]));
    }
    let mut parts: Vec<Option<String>> = Vec::new();
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        parts.push(complaint(
            all,
            &rule["items"],
            item,
            &format!("{place}/{index}"),
        ));
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        let place = format!("{place}/{name}");
        parts.push(match rule["properties"].get(name) {
            Some(rule) => complaint(all, rule, member, &place),
            None if rule["additionalProperties"].is_object() => {
                complaint(all, &rule["additionalProperties"], member, &place)
            }
            None => Some(format!("{place} is unknown")),
        });
    }
    if value.is_object() {
        for name in rule["required"].as_array().into_iter().flatten() {
            let missing = value.get(name.as_str().unwrap()).is_none();
            parts.push(missing.then(|| format!("{place}: {name} is missing")));
        }
    }
    parts.into_iter().flatten().next()
}

fn complaint_about(text: &str) -> Option<String> {
    let mut report = Report::new("test.yaml", text);
    // Editors see the variable, not its value.
    let env = |name: &str| Some(format!("${{{name}}}"));
    let root = tree::parse(text, &env, &mut report).unwrap();
    let schema = schema::schema();
    complaint(&schema, &schema, &json(&root), "")
}

/// The schema takes what the reader takes, and complains of what the reader refuses by its form.
#[test]
fn the_schema_takes_what_the_reader_takes() {
    let examples = files(&docs(), "yaml").into_iter();
    let examples = examples.map(|path| fs::read_to_string(path).unwrap());
    let full = include_str!("full.yaml").to_owned();
    for text in examples.chain(blocks()).chain([full.clone()]) {
        assert_eq!(complaint_about(&text), None, "{text}");
    }
    for (old, new) in [
        ("drain_timeout:", "drain_timout:"),
        ("allow_scope_change: true", "allow_scope_change: maybe"),
        ("dialect: stripe", "dialect: strype"),
        ("path: /api/payments", "methods: [POST]"),
        ("methods: [POST, GET]", "methods: POST"),
    ] {
        let wrong = full.replacen(old, new, 1);
        assert_ne!(wrong, full, "{old}");
        assert!(complaint_about(&wrong).is_some(), "{new}");
    }
}
