//! Reads what is stored as text back into proven values.

use std::error::Error;
use std::str::FromStr;

/// Parses a column; a text that this release does not know is a decoding error.
pub(crate) fn parsed<T: FromStr>(text: &str) -> sqlx::Result<T>
where
    T::Err: Error + Send + Sync + 'static,
{
    text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
