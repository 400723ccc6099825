//! How much longer than elsewhere things may take here: one factor for every limit of the lab and of its scenarios, for
//! machines that are slow or emulated. What a scenario lets pass on purpose (`pause`, `every`) is not stretched.

use std::sync::OnceLock;
use std::time::Duration;

/// The environment's variable: a number from 1 to 100; unset is 1.
pub const VARIABLE: &str = "SIGNPOST_SCENARIO_PATIENCE";

/// The variable is no such number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE}={0:?}: it must be a number from 1 to 100")]
pub struct NotPatience(String);

/// The factor that the environment asks for.
///
/// # Errors
/// It is no number, or out of bounds.
pub fn factor() -> Result<f64, NotPatience> {
    std::env::var_os(VARIABLE).map_or(Ok(1.0), |text| parse(&text.to_string_lossy()))
}

fn parse(text: &str) -> Result<f64, NotPatience> {
    let number = text.trim().parse().ok().filter(|number| (1.0..=100.0).contains(number));
    number.ok_or_else(|| NotPatience(text.to_owned()))
}

/// A limit as it is here.
pub fn patient(limit: Duration) -> Duration {
    static FACTOR: OnceLock<f64> = OnceLock::new();
    // `lab test` has refused to start with another number.
    limit.mul_f64(*FACTOR.get_or_init(|| factor().unwrap_or(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_a_factor_of_one_or_more() {
        assert_eq!(parse(" 2.5"), Ok(2.5));
        for bad in ["", "0.5", "101", "NaN", "inf", "much"] {
            assert_eq!(parse(bad), Err(NotPatience(bad.to_owned())));
        }
        assert!(parse("0").unwrap_err().to_string().contains("SIGNPOST_SCENARIO_PATIENCE"));
    }
}
