//! The fields of a form, some of which come more than once.

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, FromRequest, Request};

/// Names and values, in order.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// The first value of a field; empty where it is missing.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Whether a box is ticked.
    pub(super) fn ticked(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }

    /// A number, where the field holds one.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.text(name).trim().parse().ok()
    }

    /// All numbers of a field.
    pub(super) fn numbers(&self, name: &str) -> Vec<i64> {
        self.0.iter().filter(|(known, _)| known == name).filter_map(|(_, value)| value.parse().ok()).collect()
    }
}

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = FormRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, FormRejection> {
        Form::<Vec<(String, String)>>::from_request(request, state).await.map(|Form(fields)| Self(fields))
    }
}
