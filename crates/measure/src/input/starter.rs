//! The text and the prompts that come with `kl`, for people who have none yet.

use super::text::{Text, identity_of};

/// The word in place of a path that stands for them. A file of that name is `./starter`.
pub const STARTER: &str = "starter";

/// The name and version of the prompts in references: other prompts need another version.
const PROMPTS_NAME: &str = "starter-1";
const PROMPTS: &str = include_str!("../../prompts/starter.jsonl");

/// The name and version of the text in references: another text needs another version.
pub const TEXT_NAME: &str = "starter-text-1";

/// The groups of the text.
const TEXTS: [(&str, &str); 6] = [
    ("prose", include_str!("../../prompts/text/prose.txt")),
    (
        "technical",
        include_str!("../../prompts/text/technical.txt"),
    ),
    ("code", include_str!("../../prompts/text/code.txt")),
    ("dialogue", include_str!("../../prompts/text/dialogue.txt")),
    (
        "languages",
        include_str!("../../prompts/text/languages.txt"),
    ),
    ("tables", include_str!("../../prompts/text/tables.txt")),
];

/// The file of the prompts.
pub fn prompts() -> Text {
    Text {
        text: PROMPTS.to_owned(),
        identity: identity_of(PROMPTS_NAME, PROMPTS.as_bytes()),
    }
}

/// The text: each group's name, and its part.
pub fn texts() -> impl Iterator<Item = (String, Text)> {
    TEXTS.into_iter().map(|(group, text)| {
        let identity = identity_of(TEXT_NAME, text.as_bytes());
        let text = text.to_owned();
        (group.to_owned(), Text { text, identity })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another text needs another version.
    #[test]
    fn the_text_of_a_version_never_changes() {
        let hashes: Vec<_> = texts()
            .map(|(group, part)| format!("{group} {}", part.identity.sha256.unwrap()))
            .collect();
        let expected = [
            "prose aa99e6fcca41ac075ca218efe1dea95409c95e15429f0ed942f09eb12c0ad32b",
            "technical 93c24c2d3feefff3e8998941c757215b1b58fe267d1a2b1b5fd5b01622ad4e81",
            "code f52e21816a62bb9cbb5887f3d8d6dbc70986cbe457e6d56e22f367164da4d775",
            "dialogue fb51e93ce607a80e9c3fecccf80bcb045b6ae9e27987b9f88eb264513d9ec13a",
            "languages 562ed29148d6df0214b2e189b43146d4bacd281722d68bf2c5b2ebfdd13fb71d",
            "tables d283d7b63e89f77b6ae753d4dc7b7f01b5a3766534370e36a0587645e7788653",
        ];
        assert_eq!(hashes, expected);
    }
}
