//! Alternative readings of a request: headers from which frameworks and proxies take a method or a path.
//!
//! A rule that looks at the request line alone can be bypassed with one of these headers, and a fingerprint
//! without them makes two operations look the same. Both therefore use this module.
//!
//! Deliberately absent: the spellings of a path. They are the gateway's concern, since only it has routes.

use http::{HeaderMap, HeaderName, Method};

/// Headers that name another method.
pub static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

/// Headers that name another path.
pub static URL_OVERRIDES: [HeaderName; 2] = [
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
];

/// Every method that a request can be read as: its own, and those in override headers.
#[derive(Clone, Copy, Debug)]
pub struct Methods<'a> {
    method: &'a str,
    headers: Option<&'a HeaderMap>,
}

impl<'a> Methods<'a> {
    /// The methods of a request with these `headers`.
    pub fn of(method: &'a Method, headers: &'a HeaderMap) -> Self {
        Self {
            method: method.as_str(),
            headers: Some(headers),
        }
    }

    /// The method of the request line first, then those in the headers, in any letter case.
    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let lists = self.headers.into_iter().flat_map(|headers| {
            let values = METHOD_OVERRIDES.iter().map(|name| headers.get_all(name));
            values.flatten().filter_map(|value| value.to_str().ok())
        });
        let named = lists.flat_map(|list| list.split(',')).map(str::trim);
        std::iter::once(self.method).chain(named.filter(|name| !name.is_empty()))
    }
}

impl<'a> From<&'a Method> for Methods<'a> {
    /// The method alone.
    fn from(method: &'a Method) -> Self {
        Self {
            method: method.as_str(),
            headers: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn every_override_is_a_reading() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-http-method-override", "PUT"),
            ("x-http-method", " delete , "),
            ("x-method-override", "PATCH"),
            ("x-method-override", "POST"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let read: Vec<_> = Methods::of(&Method::GET, &headers).iter().collect();
        assert_eq!(read, ["GET", "PUT", "delete", "PATCH", "POST"]);
        let alone: Vec<_> = Methods::from(&Method::GET).iter().collect();
        assert_eq!(alone, ["GET"]);
    }
}
