//! Pure. Quantities (`100m`, `1.5Gi`, `1e3`): whether a text is one, and the form in which the real server writes it.

/// How a quantity's suffix counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Powers of 1000 by letter.
    Decimal,
    /// Powers of 1024.
    Binary,
    /// Powers of ten by exponent.
    Exponent,
}

/// Powers of 1000 from 10^-9 on.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Powers of 1024 from 1024^0 on.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// The finest step that a quantity has is 10^-9.
const ONE: i128 = 1_000_000_000;

/// Sign, digits with at most one dot, suffix.
struct Parts<'a> {
    negative: bool,
    number: &'a str,
    format: Format,
    /// Of 10, or of 1024 for binary suffixes.
    exponent: i32,
}

fn parts(text: &str) -> Option<Parts<'_>> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    if !number.contains(|c: char| c.is_ascii_digit()) || number.matches('.').count() > 1 {
        return None;
    }
    let (format, exponent) = suffix_of(suffix)?;
    Some(Parts { negative: text.starts_with('-'), number, format, exponent })
}

fn suffix_of(suffix: &str) -> Option<(Format, i32)> {
    if let Some(at) = DECIMAL.iter().position(|known| *known == suffix) {
        return Some((Format::Decimal, 3 * at as i32 - 9));
    }
    if let Some(at) = BINARY.iter().position(|known| *known == suffix) {
        return Some((Format::Binary, at as i32));
    }
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    let whole = !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit());
    whole.then(|| (Format::Exponent, digits.parse().unwrap_or(i32::MAX)))
}

/// Whether a text is a quantity.
pub(super) fn is_quantity(text: &str) -> bool {
    parts(text).is_some()
}

/// The form in which the real server writes a quantity: no fraction, the largest suffix that keeps it whole
/// (`0.5` is `500m`, `1024Mi` is `1Gi`). `None`: no quantity, or one beyond 2^63, which stays as it is.
pub(super) fn canonical(text: &str) -> Option<String> {
    let parts = parts(text)?;
    let steps = steps(&parts)?;
    if steps > i128::from(i64::MAX) * ONE {
        return None;
    }
    let sign = if parts.negative && steps != 0 { "-" } else { "" };
    let (number, suffix) = match parts.format {
        Format::Binary if steps >= 1024 * ONE => {
            let (number, power) = shortened((steps + ONE - 1) / ONE, 1024, BINARY.len() - 1);
            (number, BINARY[power].to_owned())
        }
        Format::Exponent => {
            let (number, power) = shortened(steps, 1000, DECIMAL.len() - 1);
            let exponent = 3 * power as i32 - 9;
            (number, if exponent == 0 { String::new() } else { format!("e{exponent}") })
        }
        _ => {
            let (number, power) = shortened(steps, 1000, DECIMAL.len() - 1);
            (number, DECIMAL[power].to_owned())
        }
    };
    if number == 0 { Some("0".into()) } else { Some(format!("{sign}{number}{suffix}")) }
}

/// The amount of a quantity in steps of 10^-9, rounded away from zero; `None`: no quantity, or one too large to tell.
#[must_use]
pub fn quantity_steps(text: &str) -> Option<i128> {
    let parts = parts(text)?;
    let steps = steps(&parts)?;
    Some(if parts.negative { -steps } else { steps })
}

/// The amount without its sign in steps of 10^-9, rounded up; `None`: too large to tell.
fn steps(parts: &Parts) -> Option<i128> {
    let (whole, fraction) = parts.number.split_once('.').unwrap_or((parts.number, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    if digits == 0 {
        return Some(0);
    }
    let (scaled, power) = match parts.format {
        Format::Binary => (digits.checked_mul(1024_i128.checked_pow(parts.exponent.try_into().ok()?)?)?, 9),
        _ => (digits, parts.exponent.checked_add(9)?),
    };
    let power = power.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let factor = 10_i128.checked_pow(power.unsigned_abs());
    match power {
        0.. => scaled.checked_mul(factor?),
        // Below the finest step: rounded up to one.
        _ => Some(factor.map_or(1, |factor| scaled / factor + i128::from(scaled % factor != 0))),
    }
}

/// Divides while that leaves a whole number.
fn shortened(mut number: i128, base: i128, most: usize) -> (i128, usize) {
    let mut power = 0;
    while number != 0 && number % base == 0 && power < most {
        number /= base;
        power += 1;
    }
    (number, power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_quantity() {
        for good in ["1", "+1", "-1.5", ".5", "1.", "100m", "1Ki", "1e3", "1E-3", "5E", "1k"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "m", ".", "1.2.3", "1x", "1K", "e3", "1 Gi", "1e", "++1", "1e++1"] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }

    #[test]
    fn amounts_compare_across_suffixes() {
        assert_eq!(quantity_steps("0.5"), quantity_steps("500m"));
        assert_eq!(quantity_steps("1Ki"), quantity_steps("1024"));
        assert!(quantity_steps("-1") < quantity_steps("1n") && quantity_steps("1n") < quantity_steps("1k"));
        assert_eq!(quantity_steps("much"), None);
    }

    #[test]
    fn the_written_form() {
        let cases = [
            ("0", "0"),
            ("0Mi", "0"),
            ("-0", "0"),
            ("1", "1"),
            ("+1", "1"),
            ("0.5", "500m"),
            (".25", "250m"),
            ("1000m", "1"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("2000000", "2M"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1023", "1023"),
            ("512Ki", "512Ki"),
            ("0.5Ki", "512"),
            ("100m", "100m"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12e-1", "1200e-3"),
            ("100e0", "100"),
            ("-1.5", "-1500m"),
            ("-2048Ki", "-2Mi"),
            ("0.0000000001", "1n"),
            ("1e-99", "1e-9"),
            ("0.1m", "100u"),
            ("1.0", "1"),
            ("8Ei", "8Ei"),
            ("16Ei", "16Ei"),
            ("110", "110"),
            ("3880576Ki", "3880576Ki"),
            ("1025Ki", "1025Ki"),
        ];
        for (text, expected) in cases {
            let written = canonical(text).unwrap_or_else(|| text.to_owned());
            assert_eq!(written, expected, "{text}");
        }
        for text in ["x", "", "1e99999999999999999999", "99999999999999999999999999999999999999999999999"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
