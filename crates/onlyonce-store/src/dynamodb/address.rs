//! Parses the URL of a DynamoDB store: `dynamodb://TABLE[?region=REGION][&endpoint=URL]`.
//!
//! Deliberately absent: credentials. They come from the usual AWS sources: the environment, a profile, the
//! role of the container or of the machine.

use percent_encoding::percent_decode_str;

/// The allowed lengths of a table's name, in bytes.
const TABLE_NAME: std::ops::RangeInclusive<usize> = 3..=255;
/// The endings of AWS host names.
const AWS_HOSTS: [&str; 3] = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"];

/// Why a URL cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Another scheme, or none.
    #[error("it does not begin with dynamodb://")]
    Scheme,
    /// An invalid table name.
    #[error("the name of a table is 3 to 255 letters, digits and . _ -")]
    Table,
    /// An unknown or empty parameter.
    #[error("it takes the parameters region and endpoint")]
    Parameter,
    /// The endpoint is not a URL.
    #[error("its endpoint is a URL that begins with http:// or https://")]
    Endpoint,
}

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) table: String,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, AddressError> {
        let rest = url
            .strip_prefix("dynamodb://")
            .ok_or(AddressError::Scheme)?;
        let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
        let table = table.trim_end_matches('/');
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !TABLE_NAME.contains(&table.len()) || !table.bytes().all(plain) {
            return Err(AddressError::Table);
        }
        let mut address = Self {
            table: table.to_owned(),
            region: None,
            endpoint: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or(AddressError::Parameter)?;
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                _ if value.is_empty() => return Err(AddressError::Parameter),
                "region" => address.region = Some(value),
                "endpoint" => {
                    host_of(&value).ok_or(AddressError::Endpoint)?;
                    address.endpoint = Some(value);
                }
                _ => return Err(AddressError::Parameter),
            }
        }
        Ok(address)
    }

    /// Whether the server is AWS itself, judged by its name and by its use of TLS.
    pub(super) fn is_aws(&self) -> bool {
        let Some(endpoint) = &self.endpoint else {
            return true;
        };
        let host = host_of(endpoint).unwrap_or_default();
        endpoint.starts_with("https://") && AWS_HOSTS.iter().any(|end| host.ends_with(end))
    }
}

/// The host of an HTTP URL, without its port.
fn host_of(url: &str) -> Option<&str> {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    (!host.is_empty() && !host.contains('@')).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let address = Address::parse("dynamodb://keys").unwrap();
        assert_eq!((address.table.as_str(), address.is_aws()), ("keys", true));
        let url = "dynamodb://my.keys/?region=eu-central-1&endpoint=http%3A%2F%2F127.0.0.1:8000";
        let address = Address::parse(url).unwrap();
        assert_eq!(address.table, "my.keys");
        assert_eq!(address.region.as_deref(), Some("eu-central-1"));
        assert_eq!(address.endpoint.as_deref(), Some("http://127.0.0.1:8000"));
        assert!(!address.is_aws());
        for (url, why) in [
            ("redis://a", AddressError::Scheme),
            ("dynamodb://ab", AddressError::Table),
            ("dynamodb://key:secret@keys", AddressError::Table),
            ("dynamodb://keys?zone=1", AddressError::Parameter),
            ("dynamodb://keys?region=", AddressError::Parameter),
            ("dynamodb://keys?endpoint=localhost", AddressError::Endpoint),
            ("dynamodb://keys?endpoint=http://", AddressError::Endpoint),
        ] {
            assert_eq!(Address::parse(url).err(), Some(why), "{url}");
        }
    }

    /// Only AWS counts as AWS: what another server does with an acknowledged write is not known.
    #[test]
    fn endpoints() {
        for (endpoint, is_aws) in [
            ("https://dynamodb.eu-west-1.amazonaws.com", true),
            ("https://vpce-1.dynamodb.eu-west-1.vpce.amazonaws.com", true),
            ("https://dynamodb.cn-north-1.amazonaws.com.cn:443/", true),
            ("https://dynamodb.eu-west-1.api.aws", true),
            ("http://dynamodb.eu-west-1.amazonaws.com", false),
            ("https://amazonaws.com.example.org", false),
            ("https://dynamodb.example.org/.amazonaws.com", false),
        ] {
            let address = Address::parse(&format!("dynamodb://keys?endpoint={endpoint}"));
            assert_eq!(address.unwrap().is_aws(), is_aws, "{endpoint}");
        }
    }
}
