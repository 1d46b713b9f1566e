//! Who is in front of the console: a signed cookie after a token, or the header of an identity-aware proxy at a listed address. And the
//! token that each form carries, so that no other site can press its buttons.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use time::OffsetDateTime;

use crate::actions::{Actor, Role};

/// The cookie's name.
const COOKIE: &str = "counterfoil_session";

/// How long a sign-in lasts, in seconds: a shift.
const SESSION_S: i64 = 12 * 3600;

/// Shortest token, in characters.
const TOKEN_CHARS_MIN: usize = 20;

/// A person's token.
#[derive(Clone)]
struct Token {
    person: String,
    role: Role,
    secret: String,
}

/// An identity-aware proxy in front of the console.
#[derive(Debug, Clone)]
pub struct Proxy {
    header: String,
    addresses: Vec<IpAddr>,
    roles: BTreeMap<String, Role>,
}

/// Who may sign in, and the key that signs sessions.
#[derive(Clone)]
pub struct Door {
    tokens: Vec<Token>,
    proxy: Option<Proxy>,
    key: hmac::Key,
    secure: bool,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("people", &self.tokens.len()).field("proxy", &self.proxy).finish_non_exhaustive()
    }
}

/// `name:role:token,…`.
fn tokens(list: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    for (place, part) in list.split(',').map(str::trim).filter(|part| !part.is_empty()).enumerate() {
        let mut fields = part.splitn(3, ':');
        let (Some(person), Some(role), Some(secret)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(format!("entry {} must be name:role:token", place + 1));
        };
        if person.is_empty() || secret.len() < TOKEN_CHARS_MIN || secret.chars().any(char::is_whitespace) {
            return Err(format!("entry {} needs a name and a token of at least {TOKEN_CHARS_MIN} characters without blanks", place + 1));
        }
        tokens.push(Token { person: person.to_owned(), role: role.parse()?, secret: secret.to_owned() });
    }
    Ok(tokens)
}

impl Proxy {
    /// The header, the addresses that may set it, and `person:role` pairs, `*` for anybody.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn read(header: &str, addresses: &str, roles: &str) -> Result<Self, String> {
        let addresses = addresses
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| part.parse().map_err(|_| format!("{part:?} is no address")))
            .collect::<Result<Vec<IpAddr>, _>>()?;
        if addresses.is_empty() {
            return Err("COUNTERFOIL_CONSOLE_PROXY_ADDRESSES must list who may set the header".into());
        }
        let mut known = BTreeMap::new();
        for part in roles.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (person, role) = part.rsplit_once(':').ok_or_else(|| format!("{part:?} must be person:role"))?;
            known.insert(person.to_owned(), role.parse()?);
        }
        Ok(Self { header: header.to_ascii_lowercase(), addresses, roles: known })
    }
}

impl Door {
    /// `secret` is anything that all replicas of the console share and nobody else knows; `secure` when the console is reached by https.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn new(list: &str, proxy: Option<Proxy>, secret: &str, secure: bool) -> Result<Self, String> {
        let tokens = tokens(list)?;
        if tokens.is_empty() && proxy.is_none() {
            return Err("nobody could sign in: name people in COUNTERFOIL_CONSOLE_TOKENS, or a proxy in COUNTERFOIL_CONSOLE_PROXY_HEADER".into());
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, format!("counterfoil console\n{list}\n{secret}").as_bytes());
        Ok(Self { tokens, proxy, key, secure })
    }

    /// Whether tokens are taken at all.
    pub(super) fn takes_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    fn sign(&self, text: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, text.as_bytes()))
    }

    fn verify(&self, text: &str, tag: &str) -> bool {
        URL_SAFE_NO_PAD.decode(tag).is_ok_and(|tag| hmac::verify(&self.key, text.as_bytes(), &tag).is_ok())
    }

    /// The cookie for whoever knows this token; `None` for nobody. Every token is compared, each in constant time.
    pub(super) fn sign_in(&self, secret: &str) -> Option<(String, String)> {
        let given = hmac::sign(&self.key, secret.as_bytes());
        let mut found = None;
        for token in &self.tokens {
            if hmac::verify(&self.key, token.secret.as_bytes(), given.as_ref()).is_ok() {
                found = Some(token);
            }
        }
        let token = found?;
        let until = OffsetDateTime::now_utc().unix_timestamp() + SESSION_S;
        let said = format!("{}\n{}\n{until}", token.person, token.role.name());
        let secure = if self.secure { "; Secure" } else { "" };
        let value = format!("{}.{}", URL_SAFE_NO_PAD.encode(&said), self.sign(&said));
        Some((token.person.clone(), format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={SESSION_S}{secure}")))
    }

    /// The cookie that ends a session.
    pub(super) fn sign_out() -> String {
        format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
    }

    /// Who sends this request.
    pub(super) fn who(&self, headers: &HeaderMap, from: IpAddr) -> Option<Actor> {
        if let Some(proxy) = self.proxy.as_ref().filter(|proxy| proxy.addresses.contains(&from.to_canonical())) {
            let mut values = headers.get_all(&proxy.header).iter();
            let (first, None) = (values.next(), values.next()) else { return None }; // added to what the client sent: nobody knows who it is
            let person = first.and_then(|value| value.to_str().ok()).map(str::trim).filter(|person| !person.is_empty())?;
            let role = proxy.roles.get(person).or_else(|| proxy.roles.get("*")).copied()?;
            return Some(Actor { person: person.to_owned(), role, came_from: format!("console {from}") });
        }
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
        let value = cookies.filter_map(|cookie| cookie.trim().split_once('=')).find(|(name, _)| *name == COOKIE)?.1;
        let (said, tag) = value.split_once('.')?;
        let said = String::from_utf8(URL_SAFE_NO_PAD.decode(said).ok()?).ok()?;
        if !self.verify(&said, tag) {
            return None;
        }
        let mut parts = said.split('\n');
        let (person, role, until) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse::<i64>().ok()?);
        (until > OffsetDateTime::now_utc().unix_timestamp()).then(|| Actor { person: person.to_owned(), role, came_from: format!("console {from}") })
    }

    /// The token that this person's forms carry.
    pub(super) fn form_token(&self, actor: &Actor) -> String {
        self.sign(&format!("form\n{}\n{}", actor.person, actor.role.name()))
    }

    /// Whether a form was this person's own, and came from this site.
    pub(super) fn own_form(&self, actor: &Actor, token: &str, headers: &HeaderMap) -> bool {
        let origin = headers.get(header::ORIGIN).and_then(|value| value.to_str().ok());
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let same = origin.is_none_or(|origin| origin.split_once("://").is_some_and(|(_, place)| place == host));
        same && self.verify(&format!("form\n{}\n{}", actor.person, actor.role.name()), token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn door() -> Door {
        Door::new("ann:admin:0123456789abcdefghij,bob:viewer:abcdefghij0123456789", None, "s", false).unwrap()
    }

    fn with_cookie(cookie: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_str(cookie.split(';').next().unwrap()).unwrap());
        headers
    }

    #[test]
    fn a_session_is_its_own_persons_and_an_altered_one_is_nobodys() {
        let (person, cookie) = door().sign_in("0123456789abcdefghij").unwrap();
        assert!(person == "ann" && cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"));
        assert_eq!(door().who(&with_cookie(&cookie), HERE).unwrap().role, Role::Admin);
        let forged = cookie.replacen('Y', "Z", 1);
        assert!(forged == cookie || door().who(&with_cookie(&forged), HERE).is_none());
        let other = Door::new("ann:admin:0123456789abcdefghij", None, "another secret", false).unwrap();
        assert!(other.who(&with_cookie(&cookie), HERE).is_none());
        assert!(door().sign_in("0123456789abcdefghi").is_none() && door().sign_in("").is_none());
    }

    #[test]
    fn a_proxys_header_counts_from_its_own_address_alone() {
        let proxy = Proxy::read("X-Forwarded-User", "10.0.0.1", "ann@shop.example:operator,*:viewer").unwrap();
        let door = Door::new("", Some(proxy), "s", true).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-user", HeaderValue::from_static("ann@shop.example"));
        let at = |address: &str| door.who(&headers, address.parse().unwrap());
        assert_eq!(at("10.0.0.1").map(|actor| actor.role), Some(Role::Operator));
        assert!(at("10.0.0.2").is_none());
        assert!(door.who(&HeaderMap::new(), "10.0.0.1".parse().unwrap()).is_none(), "an action without a person's name is refused");
        assert!(Proxy::read("x", "", "*:viewer").is_err() && Door::new("", None, "s", true).is_err());
    }

    #[test]
    fn a_form_of_another_site_or_person_is_not_ours() {
        let door = door();
        let ann = Actor { person: "ann".into(), role: Role::Admin, came_from: String::new() };
        let bob = Actor { person: "bob".into(), role: Role::Viewer, came_from: String::new() };
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("console.example"));
        assert!(door.own_form(&ann, &door.form_token(&ann), &headers));
        assert!(!door.own_form(&ann, &door.form_token(&bob), &headers) && !door.own_form(&ann, "", &headers));
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://console.example"));
        assert!(door.own_form(&ann, &door.form_token(&ann), &headers));
        headers.insert(header::ORIGIN, HeaderValue::from_static("https://evil.example"));
        assert!(!door.own_form(&ann, &door.form_token(&ann), &headers));
    }

    #[test]
    fn tokens_that_are_short_or_have_no_role_are_refused_by_their_place() {
        for wrong in ["ann:admin:short", "ann:king:0123456789abcdefghij", "0123456789abcdefghij", ":admin:0123456789abcdefghij"] {
            assert!(Door::new(wrong, None, "s", false).is_err(), "{wrong}");
        }
    }
}
