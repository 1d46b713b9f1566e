//! Money: an integer number of minor units in an ISO 4217 currency.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Currencies whose exponent is not 2, by ISO 4217 (list of 2024-06-25).
const EXPONENTS: &[(&str, u32)] = &[
    ("BHD", 3),
    ("BIF", 0),
    ("CLF", 4),
    ("CLP", 0),
    ("DJF", 0),
    ("GNF", 0),
    ("IQD", 3),
    ("ISK", 0),
    ("JOD", 3),
    ("JPY", 0),
    ("KMF", 0),
    ("KRW", 0),
    ("KWD", 3),
    ("LYD", 3),
    ("OMR", 3),
    ("PYG", 0),
    ("RWF", 0),
    ("TND", 3),
    ("UGX", 0),
    ("UYI", 0),
    ("UYW", 4),
    ("VND", 0),
    ("VUV", 0),
    ("XAF", 0),
    ("XOF", 0),
    ("XPF", 0),
];

/// Currencies with an exponent of 2, by the same list.
const TWO_DECIMALS: &str = "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD \
    CAD CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG \
    HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR \
    MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP \
    SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG";

/// An ISO 4217 currency code in upper case, known together with its exponent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency([u8; 3]);

/// A text that is not the code of a currency in ISO 4217.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a currency of ISO 4217")]
pub struct UnknownCurrency(pub String);

impl Currency {
    /// The code, three upper-case letters.
    #[must_use]
    pub fn code(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a currency is made of ASCII letters")
    }

    /// How many decimals the major unit has: 2 for EUR, 0 for JPY, 3 for KWD.
    #[must_use]
    pub fn exponent(&self) -> u32 {
        EXPONENTS.iter().find(|(code, _)| *code == self.code()).map_or(2, |(_, exponent)| *exponent)
    }
}

impl FromStr for Currency {
    type Err = UnknownCurrency;

    /// Reads a code in either case.
    fn from_str(text: &str) -> Result<Self, UnknownCurrency> {
        let unknown = || UnknownCurrency(text.chars().take(16).collect());
        let code: [u8; 3] = text.to_ascii_uppercase().as_bytes().try_into().map_err(|_| unknown())?;
        let upper = std::str::from_utf8(&code).map_err(|_| unknown())?;
        let known = EXPONENTS.iter().any(|(known, _)| *known == upper) || TWO_DECIMALS.split(' ').any(|known| known == upper);
        if known { Ok(Self(code)) } else { Err(unknown()) }
    }
}

impl TryFrom<String> for Currency {
    type Error = UnknownCurrency;
    fn try_from(text: String) -> Result<Self, UnknownCurrency> {
        text.parse()
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> Self {
        currency.code().to_owned()
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// An amount in minor units of its currency (cents of EUR, yen of JPY, fils of KWD).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Money {
    /// Minor units.
    pub amount_minor: i64,
    /// The currency that gives them their size.
    pub currency: Currency,
}

impl Money {
    /// An amount of minor units.
    #[must_use]
    pub fn new(amount_minor: i64, currency: Currency) -> Self {
        Self { amount_minor, currency }
    }
}

impl fmt::Display for Money {
    /// `10.99 EUR`, `1000 JPY`, `1.234 KWD`: as many decimals as the currency has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.currency.exponent() as usize;
        let sign = if self.amount_minor < 0 { "-" } else { "" };
        let padded = format!("{:0>width$}", self.amount_minor.unsigned_abs(), width = digits + 1);
        let (major, minor) = padded.split_at(padded.len() - digits);
        if minor.is_empty() { write!(f, "{sign}{major} {}", self.currency) } else { write!(f, "{sign}{major}.{minor} {}", self.currency) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn money(amount_minor: i64, code: &str) -> String {
        Money::new(amount_minor, code.parse().unwrap()).to_string()
    }

    #[test]
    fn money_is_written_with_the_decimals_of_its_currency() {
        assert_eq!(money(1099, "EUR"), "10.99 EUR");
        assert_eq!(money(5, "usd"), "0.05 USD");
        assert_eq!(money(1000, "JPY"), "1000 JPY");
        assert_eq!(money(1234, "KWD"), "1.234 KWD");
        assert_eq!(money(-7, "KWD"), "-0.007 KWD");
        assert_eq!(money(i64::MIN, "JPY"), "-9223372036854775808 JPY");
    }

    #[test]
    fn only_codes_of_iso_4217_are_currencies_in_either_case() {
        assert_eq!("eUr".parse::<Currency>().unwrap().code(), "EUR");
        for text in ["", "EU", "EURO", "XXX", "€", "ABC", "E R"] {
            assert!(text.parse::<Currency>().is_err(), "{text}");
        }
    }
}
