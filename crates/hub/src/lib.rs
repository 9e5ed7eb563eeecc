//! Models by name: the repositories of a Hugging Face hub, and the cache that their files share with
//! other programs.
//!
//! A [`Hub`] lists a [`Repository`], which finds the files that a name means, and the hub loads them into
//! the cache of `huggingface_hub`, where llama.cpp and Python find them too.
//!
//! No input may make it panic: clippy denies what could, and each exception states why it cannot.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

#[cfg_attr(not(feature = "client"), allow(dead_code))]
mod address;
mod cache;
#[cfg(feature = "client")]
mod client;
#[cfg(not(feature = "client"))]
#[path = "without_client.rs"]
mod client;
#[cfg(test)]
mod fake;
mod hash;
mod kinds;
mod load;
mod names;
mod wait;

pub use cache::repository_of_folder;
pub use hash::differs_from_name;
pub use kinds::Precision;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, ensure};
use serde::Deserialize;

use client::Client;
use wait::Patience;

/// A hub, and this user's cache of it.
pub struct Hub {
    client: Client,
    /// The folder that has a folder for each repository.
    cache: PathBuf,
    is_offline: bool,
    /// The time before a request is repeated for the first time.
    wait: Duration,
}

/// The most bytes that the files of a repository may have together, as a hub states it: no disk has more,
/// and sums of them do not overflow.
const MOST_BYTES: u64 = 1 << 62;

/// The files of a repository at a commit.
#[derive(Debug)]
pub struct Repository {
    /// `user/repo`, and whether these are only the files that the cache has: for messages.
    name: String,
    /// In the hub's order.
    files: Vec<HubFile>,
}

/// A file of a repository at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// `user/repo`.
    pub repository: String,
    /// 40 hexadecimal digits.
    pub commit: String,
    /// In the repository, with `/`. It stays within a folder that it is joined to.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// In hexadecimal digits: the SHA-256 of a large file, git's hash of a small one.
    pub digest: String,
}

/// The bytes of these files together; files in the cache may state any size.
pub fn total_bytes<'f>(files: impl Iterator<Item = &'f HubFile>) -> u64 {
    files.fold(0, |sum, file| file.size.saturating_add(sum))
}

/// A step of a hub's work, as it is reported to the caller.
#[derive(Debug, Clone, Copy)]
pub enum HubStep<'a> {
    /// The bytes of the file that have arrived so far.
    Arrived(u64),
    /// A line about what the hub waits for, or what it does instead.
    Message(&'a str),
}

/// The function that gets each step, and returns true to stop. It is not called while a server is
/// silent: each answer may take 10 s, or `HF_HUB_DOWNLOAD_TIMEOUT`.
pub type HubWatch<'a> = dyn Fn(HubStep) -> bool + 'a;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
enum HubFault {
    /// It may be tried again, after this time if the hub asks for one.
    #[error("{0}: repeat the call later")]
    Passing(String, Option<Duration>),
    /// Trying again will not help.
    #[error(transparent)]
    Lasting(#[from] Error),
    #[error("interrupted: what is there of it stays, and is continued the next time")]
    Stopped,
}

impl Hub {
    /// The hub and the cache that the environment names, as `huggingface_hub` reads it: `HF_ENDPOINT`,
    /// `HF_TOKEN` or the token's file, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_HUB_OFFLINE`,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`. `variable` returns the value of one.
    ///
    /// # Errors
    /// If no folder for the cache is known, or the hub's address makes no sense.
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| -> Result<Option<String>> {
            let text = set(name).map(OsString::into_string).transpose();
            text.map_err(|_| anyhow!("{name}: is not UTF-8: set it again"))
        };
        let folder = |name: &str| set(name).map(PathBuf::from);
        let user = folder("HOME").or_else(|| folder("USERPROFILE"));
        let caches = folder("XDG_CACHE_HOME").or_else(|| Some(user?.join(".cache")));
        let found = folder("HF_HOME").or_else(|| Some(caches?.join("huggingface")));
        let home = found.context("HF_HOME: is not set: set it to a folder for models")?;
        let endpoint = text("HF_ENDPOINT")?.unwrap_or("https://huggingface.co".to_owned());
        let is_hub = address::is_hub(&endpoint);
        // The value may hold a password.
        ensure!(
            is_hub,
            "HF_ENDPOINT: is not an address of a hub, such as https://huggingface.co"
        );
        let offline = text("HF_HUB_OFFLINE")?.unwrap_or_default().to_uppercase();
        let token = match text("HF_TOKEN")? {
            Some(token) => token,
            None => cache::small_text(&home.join("token")).unwrap_or_default(),
        };
        let token = Some(token.trim()).filter(|token| !token.is_empty());
        let is_token = token.is_none_or(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
        ensure!(
            is_token,
            "HF_TOKEN, or the file of 'hf auth login': is not a token: set it again"
        );
        Ok(Self {
            client: Client::new(
                endpoint.trim_end_matches('/'),
                token.map(str::to_owned),
                silence(text("HF_HUB_DOWNLOAD_TIMEOUT")?.as_deref())?,
            ),
            cache: folder("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            is_offline: ["1", "ON", "YES", "TRUE"].contains(&offline.as_str()),
            wait: Duration::from_secs(1),
        })
    }

    /// The files of `user/repo` at the newest commit of its main branch. Offline, or where the hub does
    /// not answer, those that the cache has.
    ///
    /// # Errors
    /// A repository that does not exist, or that this user may not read; a hub that does not answer, where the
    /// cache has no files of the repository.
    pub fn repository(&self, name: &str, watch: &HubWatch) -> Result<Repository> {
        let is_name = names::is_repository(name);
        ensure!(is_name, "'{name}' is not a repository's USER/REPO");
        let why = if self.is_offline {
            "HF_HUB_OFFLINE is set".to_owned()
        } else {
            match self.listed(name, watch) {
                Err(HubFault::Passing(why, _)) => why,
                done => return Ok(done?),
            }
        };
        let none = || format!("{name}: {why}, and the cache has no file of it");
        let cached = self.cached(name).with_context(none)?;
        let line = format!("{name}: {why}: only the cache is used");
        watch(HubStep::Message(&line));
        Ok(cached)
    }

    /// The files that the hub lists.
    fn listed(&self, name: &str, watch: &HubWatch) -> Result<Repository, HubFault> {
        let odd = |what: &str| anyhow!("{name}: the hub lists {what}, so nothing is loaded");
        let url = format!("/api/models/{name}/revision/main?blobs=true");
        let mut patience = Patience::new(self.wait);
        let listing: Listing = loop {
            match self.client.json(name, &url) {
                Err(fault @ HubFault::Passing(_, Some(_))) => patience.wait(fault, 0, watch)?,
                done => break done?,
            }
        };
        let stated = Some(listing.sha).filter(|commit| is_hash(commit, GIT_DIGITS));
        let commit = stated.ok_or_else(|| odd("no commit of 'main'"))?;
        let mut n_bytes: u64 = 0;
        let files = listing.siblings.into_iter().map(|file| {
            let digest = file.lfs.map_or(file.blob_id, |lfs| lfs.sha256);
            n_bytes = n_bytes.saturating_add(file.size);
            let is_sound = is_digest(&digest) && n_bytes <= MOST_BYTES;
            if !is_sound || !names::is_safe(&file.path) {
                let path = shortened(&file.path);
                return Err(odd(&format!("a file '{path}' that is not sound")));
            }
            Ok(HubFile {
                repository: name.to_owned(),
                commit: commit.clone(),
                path: file.path,
                size: file.size,
                digest,
            })
        });
        Ok(Repository {
            name: name.to_owned(),
            files: files.collect::<Result<_>>()?,
        })
    }
}

/// The time that a hub may be silent.
///
/// # Errors
/// A `value` that is no number of seconds.
fn silence(value: Option<&str>) -> Result<Duration> {
    const USUAL_S: u64 = 10;
    const LONGEST_S: u64 = 24 * 60 * 60;
    let Some(value) = value else {
        return Ok(Duration::from_secs(USUAL_S));
    };
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let shown = shortened(value);
    ensure!(
        is_number,
        "HF_HUB_DOWNLOAD_TIMEOUT: '{shown}' is not a whole number of seconds"
    );
    // One with more digits than a number may have is long.
    let seconds = value.parse().unwrap_or(LONGEST_S);
    Ok(Duration::from_secs(seconds.clamp(1, LONGEST_S)))
}

/// The hub's answer to `/api/models/USER/REPO/revision/main?blobs=true`.
#[derive(Deserialize)]
struct Listing {
    /// The commit.
    sha: String,
    siblings: Vec<Sibling>,
}

/// A file of a [`Listing`].
#[derive(Deserialize)]
struct Sibling {
    #[serde(rename = "rfilename")]
    path: String,
    size: u64,
    /// Git's hash; of a large file, that of a pointer to it.
    #[serde(rename = "blobId")]
    blob_id: String,
    lfs: Option<Lfs>,
}

/// The identity of a large file.
#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

/// The digits of git's hash, which is a SHA-1.
const GIT_DIGITS: usize = 40;

/// The digits of a SHA-256.
const SHA_256_DIGITS: usize = 64;

/// True for a hash of `length` hexadecimal digits.
fn is_hash(text: &str, length: usize) -> bool {
    let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    text.len() == length && text.chars().all(is_digit)
}

/// True for a hash that a hub states of a file.
fn is_digest(text: &str) -> bool {
    is_hash(text, GIT_DIGITS) || is_hash(text, SHA_256_DIGITS)
}

/// The start of a text that comes from outside and may have any length, for messages.
fn shortened(text: &str) -> String {
    const MOST: usize = 120;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned() + "...",
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
