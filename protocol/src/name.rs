//! The name of a job, and the two ways a person writes it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest job name, in bytes; as long as a DNS label, so that it fits everywhere.
pub const MAX_NAME_LEN: usize = 63;

/// A job's name: 1 to 63 of `A-Z a-z 0-9 . _ -`, beginning with a letter or a digit.
///
/// It is used as one component of a path and of an object key, so it can be nothing that either
/// would understand differently.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(String);

/// Why a text is not a job name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid job name {value:?}: 1 to 63 of A-Z a-z 0-9 . _ - are allowed, beginning with a letter or a digit"
)]
pub struct InvalidName {
    value: String,
}

impl JobName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for JobName {
    type Err = InvalidName;

    fn from_str(value: &str) -> Result<Self, InvalidName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let valid = value.len() <= MAX_NAME_LEN
            && value.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && value.bytes().all(allowed);
        if valid {
            Ok(Self(value.to_owned()))
        } else {
            Err(InvalidName { value: value.to_owned() })
        }
    }
}

impl TryFrom<String> for JobName {
    type Error = InvalidName;

    fn try_from(value: String) -> Result<Self, InvalidName> {
        value.parse()
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> Self {
        name.0
    }
}

impl AsRef<str> for JobName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A job as a person names it on a command line: `job/train` or plain `train`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRef(pub JobName);

impl FromStr for JobRef {
    type Err = InvalidName;

    fn from_str(value: &str) -> Result<Self, InvalidName> {
        value.strip_prefix("job/").unwrap_or(value).parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_safe_path_components() {
        for good in ["train", "exp-a", "a", "7b_run.2", &"x".repeat(63)] {
            assert_eq!(good.parse::<JobName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "-x", "a/b", "a b", "ü", "a\0", &"x".repeat(64)] {
            let error = bad.parse::<JobName>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn both_ways_to_refer_to_a_job() {
        assert_eq!("job/n".parse::<JobRef>(), "n".parse::<JobRef>());
        assert!("jobs/n".parse::<JobRef>().is_err());
    }
}
