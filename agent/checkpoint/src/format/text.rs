//! Bytes of file names as text that is always UTF-8 and always reversible.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStringExt as _;

/// Valid UTF-8 stands for itself; `%`, control characters and other bytes become `%XX`.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '%' || character.is_ascii_control() {
                push_escaped(&mut text, character as u8);
            } else {
                text.push(character);
            }
        }
        for &byte in chunk.invalid() {
            push_escaped(&mut text, byte);
        }
    }
    text
}

fn push_escaped(text: &mut String, byte: u8) {
    write!(text, "%{byte:02X}").expect("a String takes everything");
}

/// Undoes [`escape`]; `None` where the text is not what `escape` writes.
#[must_use]
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    Some(bytes)
}

/// Serde of bytes as escaped text.
pub mod serde_bytes_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    /// Writes the escaped text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::escape(bytes))
    }

    /// Reads the escaped text.
    ///
    /// # Errors
    /// Where an escape is not two hex digits.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<'_, str>::deserialize(deserializer)?;
        super::unescape(&text).ok_or_else(|| D::Error::custom("a % without two hex digits"))
    }
}

/// The bytes as a path component or path of this system.
#[must_use]
pub fn os_string(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// C39: names that differ in one byte that is not UTF-8 stay two names, in valid UTF-8.
    #[test]
    fn c39_names_that_are_not_utf8() {
        assert_eq!(escape(b"bad\xFF.pt"), "bad%FF.pt");
        assert_eq!(escape(b"bad\xFE.pt"), "bad%FE.pt");
        assert_eq!(escape("50% Ü\n".as_bytes()), "50%25 Ü%0A");
        assert_eq!(unescape("%"), None);
        assert_eq!(unescape("%G0"), None);
    }

    proptest! {
        #[test]
        fn reversible(bytes: Vec<u8>) {
            prop_assert_eq!(unescape(&escape(&bytes)), Some(bytes));
        }
    }
}
