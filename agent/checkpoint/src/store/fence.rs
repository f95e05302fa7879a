//! What exists: the rules by which an epoch hides what an earlier one wrote. No IO.

/// A decimal number as names in the store write it: no sign, no leading zero.
#[must_use]
pub fn parse_number(name: &str) -> Option<u64> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = name == "0" || !name.starts_with('0');
    if plain && canonical { name.parse().ok() } else { None }
}

/// Whether the checkpoint exists for readers: no later epoch began at or before its seq.
///
/// `epochs` has the number and the first seq of each epoch.
#[must_use]
pub fn is_visible(epochs: &[(u64, u64)], epoch: u64, seq: u64) -> bool {
    !epochs.iter().any(|&(later, first_seq)| later > epoch && seq >= first_seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// C11: numbers, not text; and only one way to write each.
    #[test]
    fn c11_names_are_numbers() {
        assert_eq!(parse_number("100000"), Some(100_000));
        assert_eq!(parse_number("0"), Some(0));
        for other in ["", "07", "+7", "-1", "7.", "7a", ".7-x", "99999999999999999999"] {
            assert_eq!(parse_number(other), None, "{other}");
        }
    }

    #[test]
    fn a_later_epoch_hides_what_an_earlier_one_writes_in_its_range() {
        let epochs = [(1, 1), (2, 6)];
        assert!(is_visible(&epochs, 1, 5), "written before the second began");
        assert!(!is_visible(&epochs, 1, 6), "the first came back");
        assert!(!is_visible(&epochs, 1, 900));
        assert!(is_visible(&epochs, 2, 6));
    }

    proptest! {
        /// What the newest epoch writes is always there, and what is hidden stays so.
        #[test]
        fn fences_only_grow(first in proptest::collection::vec(0u64..50, 1..6), seq in 0u64..60, epoch in 1u64..6) {
            let epochs: Vec<(u64, u64)> = (1..).zip(first).collect();
            let newest = epochs.len() as u64;
            prop_assert!(is_visible(&epochs, newest, seq));
            for known in 1..epochs.len() {
                if !is_visible(&epochs[..known], epoch, seq) {
                    prop_assert!(!is_visible(&epochs, epoch, seq));
                }
            }
        }
    }
}
