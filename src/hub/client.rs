//! Requests to a hub.

use std::io::{self, Read};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde::Deserialize;
use ureq::http::header::{HeaderMap, LOCATION};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body as UreqBody, BodyReader, Error};

use super::Fault;

/// A client of a hub; its clones share connections.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// The bytes of a file, from this one on.
pub struct Body {
    pub from: u64,
    pub reader: BodyReader<'static>,
}

impl Client {
    /// A client that waits `silence` for a connection, an answer, or the next bytes.
    ///
    /// # Errors
    /// If the endpoint is no address, or the token cannot be sent.
    pub fn new(endpoint: &str, token: Option<String>, silence: Duration) -> Result<Self> {
        let endpoint = endpoint.trim_end_matches('/');
        let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
        ensure!(
            endpoint.parse().is_ok_and(|uri| is_http(&uri)),
            "HF_ENDPOINT: '{endpoint}' is not an address such as https://huggingface.co"
        );
        let is_sound = |token: &String| token.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(
            token.as_ref().is_none_or(is_sound),
            "HF_TOKEN: is not a token: it has characters that no token has"
        );
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("kl/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(silence))
            .timeout_connect(Some(silence))
            .timeout_recv_response(Some(silence))
            .timeout_per_read(Some(silence))
            .timeout_per_write(Some(silence));
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint: endpoint.to_owned(),
            token,
        })
    }

    /// A page of JSON, and the address of the next one.
    pub fn json<T: for<'a> Deserialize<'a>>(
        &self,
        repository: &str,
        url: &str,
    ) -> Result<(T, Option<String>), Fault> {
        const MAX_BYTES: u64 = 64 << 20;
        let response = self.get(repository, url, 0)?;
        let next = next_page(response.headers());
        let mut text = Vec::new();
        let mut reader = response.into_body().into_reader().take(MAX_BYTES);
        reader
            .read_to_end(&mut text)
            .map_err(|error| broken(&error))?;
        let value = serde_json::from_slice(&text);
        let value = value.map_err(|error| {
            Fault::Lasting(anyhow!(
                "{repository}: what {} answers is not a hub's: {error}",
                self.endpoint
            ))
        })?;
        Ok((value, next))
    }

    /// The bytes of a file from `from` on; or from its start, if the server cannot do otherwise.
    pub fn body(&self, repository: &str, url: &str, from: u64) -> Result<Body, Fault> {
        let response = self.get(repository, url, from)?;
        let is_part = response.status() == 206;
        Ok(Body {
            from: if is_part { from } else { 0 },
            reader: response.into_body().into_reader(),
        })
    }

    /// The answer to a request, redirects followed. The token goes to the hub itself only.
    fn get(&self, repository: &str, url: &str, from: u64) -> Result<Response<UreqBody>, Fault> {
        const MAX_REDIRECTS: usize = 10;
        let bad = |url: &str| {
            Fault::Lasting(anyhow!(
                "{repository}: the hub names an address that is none: '{url}'"
            ))
        };
        let mut url = absolute(url, &self.endpoint);
        for _ in 0..=MAX_REDIRECTS {
            let uri: Uri = url.parse().map_err(|_| bad(&url))?;
            let mut request = self.agent.get(&uri).header("Accept-Encoding", "identity");
            if from > 0 {
                request = request.header("Range", format!("bytes={from}-"));
            }
            let token = self
                .token
                .as_ref()
                .filter(|_| origin(&url) == origin(&self.endpoint));
            if let Some(token) = token {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| self.failed(&uri, error))?;
            if !response.status().is_redirection() {
                return self.checked(repository, &uri, response);
            }
            let to = header(response.headers(), LOCATION.as_str());
            url = absolute(to.ok_or_else(|| bad(""))?, origin(&url));
        }
        Err(Fault::Lasting(anyhow!(
            "{repository}: the hub redirects in circles"
        )))
    }

    /// An error before there was an answer.
    fn failed(&self, uri: &Uri, error: Error) -> Fault {
        let host = uri.host().unwrap_or_default();
        match error {
            Error::Timeout(_) => Fault::Passing(format!("{host} does not answer"), None),
            Error::Io(error) if error.kind() != io::ErrorKind::ConnectionRefused => broken(&error),
            error => Fault::Unreachable(format!("{host} cannot be reached ({error})")),
        }
    }

    /// Refuses an answer that is an error.
    fn checked(
        &self,
        repository: &str,
        uri: &Uri,
        response: Response<UreqBody>,
    ) -> Result<Response<UreqBody>, Fault> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let headers = response.headers();
        let code = header(headers, "X-Error-Code").unwrap_or_default();
        let host = uri.host().unwrap_or_default();
        let page = format!("{}/{repository}", self.endpoint);
        let lasting = |text: String| Err(Fault::Lasting(anyhow!("{repository}: {text}")));
        match (status.as_u16(), code, &self.token) {
            (_, "GatedRepo", None) => lasting(format!(
                "is gated: accept its terms at {page}, then set HF_TOKEN to a token of your account"
            )),
            (_, "GatedRepo", Some(_)) => lasting(format!(
                "is gated, and your token gives no access: accept its terms at {page} with the account of HF_TOKEN"
            )),
            (401, _, Some(_)) => lasting(format!(
                "{host} refuses your token: check HF_TOKEN, or the file that 'hf auth login' wrote"
            )),
            (401, _, None) | (404, "" | "RepoNotFound", _) => lasting(format!(
                "{host} has no such repository, or it is private: check the name, or set HF_TOKEN to a token that may read it"
            )),
            (408 | 429 | 500 | 502..=504, _, _) => {
                let after =
                    header(headers, "Retry-After").and_then(|text| text.trim().parse().ok());
                Err(Fault::Passing(
                    format!("{host} answers {status}"),
                    after.map(Duration::from_secs),
                ))
            }
            _ => lasting(
                format!(
                    "{host} answers {status} {}",
                    header(headers, "X-Error-Message").unwrap_or(code)
                )
                .trim_end()
                .to_owned(),
            ),
        }
    }
}

/// The fault of a connection that breaks.
pub fn broken(error: &io::Error) -> Fault {
    Fault::Passing(format!("the connection broke ({error})"), None)
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The address in `Link: <address>; rel="next"`.
fn next_page(headers: &HeaderMap) -> Option<String> {
    let mut links = header(headers, "Link")?.split(',');
    let next = links.find(|link| link.contains("rel=\"next\""))?;
    Some(next.split_once('<')?.1.split_once('>')?.0.to_owned())
}

/// An address, which may be a path on the server of `base`.
fn absolute(url: &str, base: &str) -> String {
    if url.starts_with('/') {
        format!("{base}{url}")
    } else {
        url.to_owned()
    }
}

/// Scheme, host and port of an address.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url
        .get(start..)
        .and_then(|rest| rest.find('/'))
        .map_or(url.len(), |n| start + n);
    url.get(..end).unwrap_or(url)
}
