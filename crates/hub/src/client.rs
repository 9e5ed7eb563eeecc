//! Requests to a hub.

use std::io::Read as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use serde::de::DeserializeOwned;
use ureq::{Agent, Body, BodyReader, http::Response};

use super::address::{host, redirected, secret};
use super::{HubFault, shortened};
use kl_system::threads;

const PARTIAL_CONTENT: u16 = 206;
const RANGE_NOT_SATISFIABLE: u16 = 416;

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

    /// A page of JSON. A hub that sends it in drops is given up.
    pub fn json<T: DeserializeOwned>(&self, repository: &str, url: &str) -> Result<T, HubFault> {
        const MAX_BYTES: usize = 64 << 20;
        const BLOCK: usize = 1 << 16;
        const LONGEST: Duration = Duration::from_secs(300);
        let start = Instant::now();
        let (mut text, mut response) = (Vec::new(), self.get(repository, url, 0)?);
        let mut reader = response.body_mut().as_reader();
        let (host, mut block) = (host(&self.endpoint), vec![0; BLOCK]);
        while text.len() < MAX_BYTES {
            let failed = |error| format!("{host} stops answering ({error})");
            let read = reader.read(&mut block);
            match read.map_err(|error| HubFault::Passing(failed(error), None))? {
                0 => break,
                n => text.extend_from_slice(block.get(..n).unwrap_or_default()),
            }
            if start.elapsed() > LONGEST {
                let what = format!("{host} takes too long to list the files");
                return Err(HubFault::Passing(what, None));
            }
        }
        let parsed = serde_json::from_slice(&text);
        // A message of serde holds the value that it does not expect, of any length.
        let why = |error: serde_json::Error| anyhow!(shortened(&error.to_string()));
        let shown = self.shown_endpoint();
        let odd = || format!("{repository}: {shown} does not answer as a hub does");
        Ok(parsed.map_err(why).with_context(odd)?)
    }

    /// The bytes of a file from `from` on; or from 0, if the server sends no parts, or other ones.
    pub fn body(&self, repository: &str, url: &str, from: u64) -> Result<Rest, HubFault> {
        let response = self.get(repository, url, from)?;
        let first = match response.status().as_u16() {
            PARTIAL_CONTENT => first_byte(&response).unwrap_or(from),
            _ => 0,
        };
        let is_refused = response.status() == RANGE_NOT_SATISFIABLE;
        if !is_refused && (first == from || first == 0) {
            return Ok((first, response.into_body().into_reader()));
        }
        if from > 0 {
            return self.body(repository, url, 0);
        }
        let what = format!("{} sends another part of the file", host(&self.endpoint));
        Err(HubFault::Passing(what, None))
    }

    /// The answer to a request, after redirects. The token is sent to the hub alone.
    fn get(&self, repository: &str, path: &str, from: u64) -> Result<HubAnswer, HubFault> {
        const MAX_REDIRECTS: usize = 10;
        // Names are resolved on a thread, whose start would panic.
        threads::one_more().map_err(anyhow::Error::from)?;
        let mut url = format!("{}{path}", self.endpoint);
        for _ in 0..MAX_REDIRECTS {
            let mut request = self.agent.get(&url);
            if from > 0 {
                request = request.header("Range", format!("bytes={from}-"));
            }
            let path = url.strip_prefix(&self.endpoint).unwrap_or_default();
            if let Some(token) = self.token.as_ref().filter(|_| path.starts_with('/')) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let called = request.call();
            let response = called.map_err(|error| self.unreachable(&url, &error))?;
            if !response.status().is_redirection() {
                return self.checked(repository, &url, from, response);
            }
            let location = header(&response, "Location");
            url = redirected(&url, location).ok_or_else(|| {
                // What follows the path may be a signature.
                let shown = shortened(location.split('?').next().unwrap_or_default());
                let host = host(&url);
                anyhow!("{repository}: {host} redirects to '{shown}', from where kl loads nothing")
            })?;
        }
        Err(anyhow!("{repository}: the hub redirects without end").into())
    }

    fn unreachable(&self, url: &str, error: &ureq::Error) -> HubFault {
        let why = match secret(&self.endpoint) {
            "" => error.to_string(),
            secret => error.to_string().replace(secret, ""),
        };
        let what = format!("{} cannot be reached ({})", host(url), shortened(&why));
        HubFault::Passing(what, None)
    }

    /// The hub's address, for messages.
    fn shown_endpoint(&self) -> String {
        match secret(&self.endpoint) {
            "" => self.endpoint.clone(),
            secret => self.endpoint.replacen(secret, "", 1),
        }
    }

    /// Refuses an answer that is an error. That a part does not exist, where one was asked for, is none.
    fn checked(
        &self,
        repository: &str,
        url: &str,
        from: u64,
        response: HubAnswer,
    ) -> Result<HubAnswer, HubFault> {
        let (status, host) = (response.status(), host(url));
        let code = &shortened(header(&response, "X-Error-Code"));
        let page = format!("{}/{repository}", self.shown_endpoint());
        let what = match (status.as_u16(), code.as_str(), &self.token) {
            (200..=299, _, _) => return Ok(response),
            (RANGE_NOT_SATISFIABLE, _, _) if from > 0 => return Ok(response),
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

/// The position in the file of the first byte of a part, if the server states it.
fn first_byte(response: &HubAnswer) -> Option<u64> {
    let range = header(response, "Content-Range").strip_prefix("bytes ")?;
    range.split('-').next()?.trim().parse().ok()
}

fn header<'a>(response: &'a HubAnswer, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("", |value| value.to_str().unwrap_or_default())
}
