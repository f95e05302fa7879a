//! Sizes and durations as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A number of bytes. People write and read `1Ti`, `512Mi`, `4Ki`; JSON output has the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid size {value:?}: a number of bytes with an optional unit of Ki, Mi, Gi, Ti or Pi is allowed"
)]
pub struct InvalidSize {
    value: String,
}

const UNITS: [(&str, u64); 5] =
    [("Pi", 1 << 50), ("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];

impl FromStr for ByteSize {
    type Err = InvalidSize;

    fn from_str(value: &str) -> Result<Self, InvalidSize> {
        let invalid = || InvalidSize { value: value.to_owned() };
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(suffix, unit)| value.strip_suffix(suffix).map(|digits| (digits, *unit)))
            .unwrap_or((value, 1));
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        let count: u64 = digits.parse().map_err(|_| invalid())?;
        count.checked_mul(unit).map(Self).ok_or_else(invalid)
    }
}

/// Exact where the size is a whole number of a unit, so that what is printed parses back.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS.iter().find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit));
        match exact {
            Some((suffix, unit)) => f.pad(&format!("{}{suffix}", self.0 / unit)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

impl ByteSize {
    /// Three significant digits for a table: `1.46Gi`, `812Ki`, `17B`.
    #[must_use]
    pub fn approx(self) -> String {
        let Some((suffix, unit)) = UNITS.iter().find(|(_, unit)| self.0 >= *unit) else {
            return format!("{}B", self.0);
        };
        // Display only: a rounding error in the 16th digit is not seen.
        #[allow(clippy::cast_precision_loss)]
        let value = self.0 as f64 / *unit as f64;
        let digits = if value < 9.995 {
            2
        } else if value < 99.95 {
            1
        } else {
            0
        };
        format!("{value:.digits$}{suffix}")
    }
}

impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Bytes(u64),
            Text(String),
        }
        match Raw::deserialize(deserializer) {
            Ok(Raw::Bytes(bytes)) => Ok(Self(bytes)),
            Ok(Raw::Text(text)) => text.parse().map_err(serde::de::Error::custom),
            Err(_) => Err(serde::de::Error::custom(
                "invalid size: a number of bytes with an optional unit of Ki, Mi, Gi, Ti or Pi is allowed",
            )),
        }
    }
}

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid duration {value:?}: a number with a unit is allowed, such as 90s, 10m, 8h or 7days"
)]
pub struct InvalidDuration {
    value: String,
}

/// Parses a duration as people write it: `90s`, `1m 30s`, `168h`.
///
/// # Errors
/// Names the value and what is allowed.
pub fn parse_duration(value: &str) -> Result<Duration, InvalidDuration> {
    humantime::parse_duration(value).map_err(|_| InvalidDuration { value: value.to_owned() })
}

/// Whole seconds (milliseconds below ten seconds) for people: `1m 30s`, `6h`, `250ms`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let rounded = if duration < Duration::from_secs(10) {
        Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(duration.as_secs())
    };
    humantime::format_duration(rounded).to_string()
}

/// Serde of an optional duration as humantime text, for `#[serde(with = "units::opt_duration")]`.
pub mod opt_duration {
    use super::Duration;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes `8h`, or nothing.
    ///
    /// # Errors
    /// Those of the serializer.
    #[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // serde's signature
    pub fn serialize<S: Serializer>(value: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => s.collect_str(&humantime::format_duration(*duration)),
            None => s.serialize_none(),
        }
    }

    /// Reads `8h`, or nothing.
    ///
    /// # Errors
    /// Names the value and what is allowed.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|text| super::parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
    }
}

/// Serde of a duration as humantime text, for `#[serde(with = "units::duration")]`.
pub mod duration {
    use super::Duration;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes `8h`.
    ///
    /// # Errors
    /// Those of the serializer.
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
    pub fn serialize<S: Serializer>(value: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&humantime::format_duration(*value))
    }

    /// Reads `8h`.
    ///
    /// # Errors
    /// Names the value and what is allowed.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        super::parse_duration(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_people_write() {
        for (text, bytes) in [("0", 0), ("17", 17), ("4Ki", 4096), ("1Ti", 1 << 40)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
        }
        for bad in ["", "Ki", "1kB", "1 Ki", "-1", "1.5Gi", "99999999Pi", "1T"] {
            let error = bad.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn sizes_people_read() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00Ki"),
            (1_572_864, "1.50Mi"),
            (50 << 20, "50.0Mi"),
            (200 << 30, "200Gi"),
        ] {
            assert_eq!(ByteSize(bytes).approx(), text);
        }
    }

    proptest! {
        #[test]
        fn a_printed_size_parses_back(bytes: u64) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("168h"), Ok(Duration::from_secs(168 * 3600)));
        assert!(parse_duration("10").unwrap_err().to_string().contains("\"10\""));
        assert_eq!(format_duration(Duration::from_millis(90_400)), "1m 30s");
        assert_eq!(format_duration(Duration::from_micros(250_700)), "250ms");
    }
}
