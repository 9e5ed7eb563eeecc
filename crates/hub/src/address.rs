//! Addresses on the web: their parts, and where a redirect leads.

/// The parts of `https://user:password@host:443/path?query`.
struct Parts<'a> {
    /// In lower case.
    scheme: String,
    /// With the user and the password, if there are any.
    authority: &'a str,
    /// From the first `/`, `?` or `#` on.
    rest: &'a str,
}

impl<'a> Parts<'a> {
    /// Parses an address of the web; `None` for any other text.
    fn parse(address: &'a str) -> Option<Self> {
        let (scheme, rest) = address.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at_checked(end)?;
        let is_odd = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
        let is_web = matches!(scheme.as_str(), "http" | "https");
        let parts = Self {
            scheme,
            authority,
            rest,
        };
        let is_sound = is_web && !address.contains(is_odd) && !parts.host().is_empty();
        is_sound.then_some(parts)
    }

    /// The host and its port.
    fn host(&self) -> &'a str {
        let (_, host) = self
            .authority
            .rsplit_once('@')
            .unwrap_or(("", self.authority));
        host
    }
}

/// True for the address of a hub: `https://` or `http://`, a host, and perhaps a path.
pub fn is_hub(address: &str) -> bool {
    Parts::parse(address).is_some_and(|parts| !parts.rest.contains(['?', '#']))
}

/// The host of an address and its port, without a user and a password.
pub fn host(address: &str) -> &str {
    Parts::parse(address).map_or("", |parts| parts.host())
}

/// The user and the password in an address, with `@`; empty if it has none.
pub fn secret(address: &str) -> &str {
    let authority = Parts::parse(address).map_or("", |parts| parts.authority);
    let end = authority.rfind('@').map_or(0, |at| at + 1);
    authority.get(..end).unwrap_or_default()
}

/// The address that a redirect from `from` to `location` leads to. `None` if it leads to nothing that can
/// be loaded: out of the web, or from https to http, where others can read and change what is sent.
pub fn redirected(from: &str, location: &str) -> Option<String> {
    let parts = Parts::parse(from)?;
    let (scheme, authority) = (&parts.scheme, parts.authority);
    let to = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        location.to_owned()
    };
    let is_as_safe = Parts::parse(&to)?.scheme == "https" || scheme == "http";
    is_as_safe.then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_stays_on_the_web_and_within_https() {
        let from = "https://me:pw@hub.co:8443/base/x?y";
        for (location, expected) in [
            ("https://cdn.co/a?b", Some("https://cdn.co/a?b")),
            ("HTTPS://cdn.co", Some("HTTPS://cdn.co")),
            ("//cdn.co/a", Some("https://cdn.co/a")),
            ("/a/b", Some("https://me:pw@hub.co:8443/a/b")),
            ("http://cdn.co/a", None),
            ("", None),
            ("a/b", None),
            ("?a", None),
            ("//", None),
            ("https://", None),
            ("https:///a", None),
            ("https://me@/a", None),
            ("file:///etc/passwd", None),
            ("ftp://cdn.co/a", None),
            ("https://cdn.co\\a", None),
            ("https://cdn.co /a", None),
        ] {
            assert_eq!(
                redirected(from, location).as_deref(),
                expected,
                "{location}"
            );
        }
        let plain = redirected("http://hub.co", "http://cdn.co/a");
        assert_eq!(plain.as_deref(), Some("http://cdn.co/a"));
    }

    #[test]
    fn a_host_is_shown_without_a_password() {
        let address = "https://me:p@w@hub.co:8443/base";
        assert_eq!((host(address), secret(address)), ("hub.co:8443", "me:p@w@"));
        assert_eq!(
            (host("https://hub.co"), secret("https://hub.co")),
            ("hub.co", "")
        );
    }

    #[test]
    fn a_hub_has_a_host() {
        for address in [
            "https://hub.co",
            "http://localhost:1/base",
            "https://a:b@[::1]:1",
        ] {
            assert!(is_hub(address), "{address}");
        }
        for address in [
            "hub.co",
            "https://",
            "https:///a",
            "https://a?b",
            "https://a\n",
            "file:///a",
        ] {
            assert!(!is_hub(address), "{address:?}");
        }
    }
}
