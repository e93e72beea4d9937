//! Sixteen bytes as PostgreSQL's `uuid`: its index is half as large as that of `bytea`, and it needs no
//! length.

use sqlx::{
    Decode, Encode, Postgres, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef, types::Oid},
};

/// The type numbers of `uuid` and `uuid[]`, the same on every server.
const UUID: Oid = Oid(2950);
const UUID_ARRAY: Oid = Oid(2951);

/// The positions of the dashes in a UUID.
const DASHES: [usize; 4] = [8, 13, 18, 23];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uuid(pub(super) [u8; 16]);

impl Uuid {
    /// Parses `text`, if it is exactly the form in which the server writes a UUID.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 36 || DASHES.iter().any(|at| text[*at] != b'-') {
            return None;
        }
        let mut digits = text
            .iter()
            .enumerate()
            .filter(|(at, _)| !DASHES.contains(at));
        let mut digit = || match digits.next()?.1 {
            digit @ b'0'..=b'9' => Some(digit - b'0'),
            digit @ b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            *byte = digit()? << 4 | digit()?;
        }
        Some(Self(bytes))
    }
}

impl Type<Postgres> for Uuid {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(UUID)
    }
}

impl PgHasArrayType for Uuid {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(UUID_ARRAY)
    }
}

impl Encode<'_, Postgres> for Uuid {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }
}

impl Decode<'_, Postgres> for Uuid {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        Ok(Self(value.as_bytes()?.try_into()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_server_writes_alike() {
        let text = "00112233-4455-6677-8899-aabbccddeeff";
        let bytes = std::array::from_fn(|at| u8::try_from(at * 17).unwrap());
        assert_eq!(Uuid::parse(text), Some(Uuid(bytes)));
        for other in [
            "00112233-4455-6677-8899-AABBCCDDEEFF",
            "00112233445566778899aabbccddeeff",
            "00112233-4455-6677-8899-aabbccddeef",
            "00112233-4455-6677-8899+aabbccddeeff",
            "{0112233-4455-6677-8899-aabbccddeef}",
        ] {
            assert_eq!(Uuid::parse(other), None, "{other}");
        }
    }
}
