//! Signing secrets: lists, newest first, that no log can show.

/// A signing secret as the provider's console shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Why a secret is refused at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// Nothing where a secret should be.
    #[error("is empty")]
    Empty,
    /// Copied with a blank or a line end, which would make every signature fail.
    #[error("holds a blank or a line end: copy it again without")]
    Blank,
    /// A key that is not base64.
    #[error("is not base64 behind its prefix")]
    Base64,
    /// A public key that is not 32 bytes.
    #[error("is not a 32-byte Ed25519 public key")]
    PublicKey,
    /// Square signs its notification URL together with the body.
    #[error("needs the notification URL that Square signs")]
    NotificationUrl,
}

impl Secret {
    /// Takes a secret at its word, unless it holds blanks.
    ///
    /// # Errors
    /// When it is empty or holds a blank.
    pub fn new(text: &str) -> Result<Self, BadSecret> {
        if text.is_empty() {
            return Err(BadSecret::Empty);
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(BadSecret::Blank);
        }
        Ok(Self(text.to_owned()))
    }

    /// The text, for signing alone.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// Reads a comma-separated list, newest first.
///
/// # Errors
/// When one of them is empty or holds a blank.
pub fn secrets(list: &str) -> Result<Vec<Secret>, BadSecret> {
    list.split(',').map(Secret::new).collect()
}
