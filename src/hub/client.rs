//! Requests to a hub.

use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde::de::DeserializeOwned;
use ureq::{Agent, Body, BodyReader, http::Response};

use super::HubFault;

/// A client of a hub.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

type HubAnswer = Response<Body>;

/// The bytes of a file from a position on.
type Rest = (u64, BodyReader<'static>);

impl Client {
    /// A client that waits so long for a connection, for an answer, and for more bytes.
    pub fn new(endpoint: &str, token: Option<String>, silence: Duration) -> Self {
        let silence = Some(silence);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("kl/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(silence)
            .timeout_connect(silence)
            .timeout_recv_response(silence)
            .timeout_per_read(silence)
            .timeout_per_write(silence);
        let (agent, endpoint) = (config.build().new_agent(), endpoint.to_owned());
        Self {
            agent,
            endpoint,
            token,
        }
    }

    /// A page of JSON.
    pub fn json<T: DeserializeOwned>(&self, repository: &str, url: &str) -> Result<T, HubFault> {
        const MAX_BYTES: u64 = 64 << 20;
        let mut text = Vec::new();
        let mut response = self.get(repository, url, 0)?;
        let mut reader = response.body_mut().as_reader().take(MAX_BYTES);
        let read = reader.read_to_end(&mut text);
        read.map_err(|error| HubFault::Passing(error.to_string(), None))?;
        let odd = || format!("{}: does not answer as a hub does", self.endpoint);
        Ok(serde_json::from_slice(&text).with_context(odd)?)
    }

    /// The bytes of a file from `from` on; or from 0, if the server sends no parts.
    pub fn body(&self, repository: &str, url: &str, from: u64) -> Result<Rest, HubFault> {
        const PARTIAL_CONTENT: u16 = 206;
        let response = self.get(repository, url, from)?;
        let is_part = response.status() == PARTIAL_CONTENT;
        Ok((
            if is_part { from } else { 0 },
            response.into_body().into_reader(),
        ))
    }

    /// The answer to a request, after redirects. The token is sent to the hub alone.
    fn get(&self, repository: &str, url: &str, from: u64) -> Result<HubAnswer, HubFault> {
        const MAX_REDIRECTS: usize = 10;
        let mut url = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            if url.starts_with('/') {
                url.insert_str(0, &self.endpoint);
            }
            let mut request = self.agent.get(&url);
            if from > 0 {
                request = request.header("Range", format!("bytes={from}-"));
            }
            let path = url.strip_prefix(&self.endpoint).unwrap_or_default();
            if let Some(token) = self.token.as_ref().filter(|_| path.starts_with('/')) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let host = url.split('/').nth(2).unwrap_or(&url).to_owned();
            let failed = |error| format!("{host} cannot be reached ({error})");
            let called = request.call();
            let response = called.map_err(|error| HubFault::Passing(failed(error), None))?;
            if !response.status().is_redirection() {
                return self.checked(repository, &host, response);
            }
            url = header(&response, "Location").to_owned();
        }
        Err(anyhow!("{repository}: the hub redirects without end").into())
    }

    /// Refuses an answer that is an error.
    fn checked(
        &self,
        repository: &str,
        host: &str,
        response: HubAnswer,
    ) -> Result<HubAnswer, HubFault> {
        let status = response.status();
        let code = header(&response, "X-Error-Code");
        let page = format!("{}/{repository}", self.endpoint);
        let what = match (status.as_u16(), code, &self.token) {
            (200..=299, _, _) => return Ok(response),
            (408 | 429 | 500 | 502..=504, _, _) => {
                // A limit of requests is in `RateLimit: "api";r=0;t=55`.
                let limit = header(&response, "RateLimit").split("t=").nth(1);
                let seconds = limit.unwrap_or(header(&response, "Retry-After")).parse();
                let wait = seconds.ok().map(Duration::from_secs);
                return Err(HubFault::Passing(format!("{host} answers {status}"), wait));
            }
            (_, "GatedRepo", None) => format!(
                "is gated: accept its terms at {page}, and set HF_TOKEN to a token of your account"
            ),
            (_, "GatedRepo", Some(_)) => format!(
                "is gated, and your token is not let in: accept its terms at {page} with the account of HF_TOKEN"
            ),
            (401, _, Some(_)) => format!(
                "{host} refuses your token: check HF_TOKEN, or the file that 'hf auth login' has written"
            ),
            (401, _, None) | (404, "" | "RepoNotFound", _) => format!(
                "{host} has no such repository, or it is private: check the name, or set HF_TOKEN to a token that may read it"
            ),
            _ => format!("{host} answers {status} {code}"),
        };
        Err(anyhow!("{repository}: {}", what.trim_end()).into())
    }
}

fn header<'a>(response: &'a HubAnswer, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("", |value| value.to_str().unwrap_or_default())
}
