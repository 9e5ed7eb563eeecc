//! The markers around spans, and those of reasoning and of calls of tools in published chat templates.

use std::borrow::Cow;
use std::str::FromStr;

/// The text that opens a span, and the text that closes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Markers {
    /// Never empty.
    pub open: Cow<'static, str>,
    /// `None`: the span runs to the answer's end.
    pub close: Option<Cow<'static, str>>,
}

impl FromStr for Markers {
    type Err = ();

    /// Parses `OPEN..CLOSE`, where CLOSE may be empty.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (open, close) = text.split_once("..").ok_or(())?;
        if open.is_empty() {
            return Err(());
        }
        Ok(Self {
            open: Cow::Owned(open.to_owned()),
            close: (!close.is_empty()).then(|| Cow::Owned(close.to_owned())),
        })
    }
}

/// Markers of published chat templates.
pub struct KnownMarkers {
    pub markers: Markers,
    /// The text by which a template with these markers is known; `None`: one of them.
    sign: Option<&'static str>,
}

impl KnownMarkers {
    const fn new(open: &'static str, close: &'static str) -> Self {
        Self::all(open, Some(close), None)
    }

    /// A marker that opens a span up to the answer's end.
    const fn without_end(open: &'static str) -> Self {
        Self::all(open, None, None)
    }

    /// Markers that a template puts together, or that are too common by themselves.
    const fn with_sign(open: &'static str, close: &'static str, sign: &'static str) -> Self {
        Self::all(open, Some(close), Some(sign))
    }

    const fn all(
        open: &'static str,
        close: Option<&'static str>,
        sign: Option<&'static str>,
    ) -> Self {
        let close = match close {
            Some(close) => Some(Cow::Borrowed(close)),
            None => None,
        };
        let open = Cow::Borrowed(open);
        Self {
            markers: Markers { open, close },
            sign,
        }
    }

    /// True if a template has them, or a vocabulary that has these texts as tokens.
    pub fn are_in(&self, template: &str, is_token: impl Fn(&str) -> bool) -> bool {
        let Markers { open, close } = &self.markers;
        match self.sign {
            Some(sign) => template.contains(sign),
            None => {
                let closes = close
                    .as_deref()
                    .is_some_and(|close| template.contains(close));
                template.contains(&**open) || closes || is_token(open)
            }
        }
    }
}

/// The markers of reasoning; all have an end.
pub(super) static REASONING: [KnownMarkers; 16] = [
    // Qwen, DeepSeek, GLM, Phi-4, Nemotron and most others.
    KnownMarkers::new("<think>", "</think>"),
    // Magistral.
    KnownMarkers::new("[THINK]", "[/THINK]"),
    // gpt-oss.
    KnownMarkers::with_sign("<|channel|>analysis", "<|end|>", "<|channel|>"),
    // Gemma 4.
    KnownMarkers::with_sign("<|channel>thought", "<channel|>", "<|channel>"),
    // Command A Reasoning and R7B.
    KnownMarkers::new("<|START_THINKING|>", "<|END_THINKING|>"),
    // Seed-OSS.
    KnownMarkers::new("<seed:think>", "</seed:think>"),
    // EXAONE Deep.
    KnownMarkers::new("<thought>", "</thought>"),
    // Apertus.
    KnownMarkers::new("<|inner_prefix|>", "<|inner_suffix|>"),
    // Kimi-VL.
    KnownMarkers::new("◁think▷", "◁/think▷"),
    // Granite 3.2.
    KnownMarkers::new("Here is my thought process:", "Here is my response:"),
    // Apriel 1.6.
    KnownMarkers::new("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    // MiniMax M3.
    KnownMarkers::new("<mm:think>", "</mm:think>"),
    // Kimi K3.
    KnownMarkers::with_sign("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|close|>"),
    // Hunyuan 3.
    KnownMarkers::with_sign("<think:opensource>", "</think:opensource>", ":opensource"),
    // Solar Open.
    KnownMarkers::with_sign("<|think|>", "<|end|>", "<|think|>"),
    // Muse Glimmer.
    KnownMarkers::with_sign(" to=self<|message|>", "<|eom|>", "to=self"),
];

/// The markers of calls of tools.
pub(super) static TOOL_CALLS: [KnownMarkers; 30] = [
    // Hermes, Qwen, GLM, Granite 4.
    KnownMarkers::new("<tool_call>", "</tool_call>"),
    // Mistral.
    KnownMarkers::without_end("[TOOL_CALLS]"),
    // Llama 3.1.
    KnownMarkers::without_end("<|python_tag|>"),
    // DeepSeek V3 to V3.1, and V3.2.
    KnownMarkers::new("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    KnownMarkers::with_sign(
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "DSML",
    ),
    // DeepSeek V4.
    KnownMarkers::with_sign("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "DSML"),
    // gpt-oss, which names a tool before the channel or in it.
    KnownMarkers::with_sign(" to=functions.", "<|call|>", "<|channel|>"),
    KnownMarkers::with_sign(
        "<|channel|>commentary to=functions.",
        "<|call|>",
        "<|channel|>",
    ),
    // Gemma 4 and FunctionGemma.
    KnownMarkers::new("<|tool_call>", "<tool_call|>"),
    KnownMarkers::new("<start_function_call>", "<end_function_call>"),
    // Phi-4-mini, and Granite 3, which has no end marker.
    KnownMarkers::new("<|tool_call|>", "<|/tool_call|>"),
    // Command A and R7B.
    KnownMarkers::new("<|START_ACTION|>", "<|END_ACTION|>"),
    // Kimi K2.
    KnownMarkers::new("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    // LFM2.
    KnownMarkers::new("<|tool_call_start|>", "<|tool_call_end|>"),
    // MiniMax M2.
    KnownMarkers::new("<minimax:tool_call>", "</minimax:tool_call>"),
    // Nemotron Nano 2.
    KnownMarkers::new("<TOOLCALL>", "</TOOLCALL>"),
    // Apertus.
    KnownMarkers::new("<|tools_prefix|>", "<|tools_suffix|>"),
    // OLMo 3.
    KnownMarkers::new("<function_calls>", "</function_calls>"),
    // Jamba.
    KnownMarkers::new("<tool_calls>", "</tool_calls>"),
    // Functionary 3.1, and others that are shown this form.
    KnownMarkers::new("<function=", "</function>"),
    // MiniCPM5.
    KnownMarkers::new("<function name=", "</function>"),
    // Seed-OSS.
    KnownMarkers::new("<seed:tool_call>", "</seed:tool_call>"),
    // GigaChat 3 and 3.1.
    KnownMarkers::with_sign(
        "function call<|role_sep|>",
        "<|message_sep|>",
        "<|role_sep|>",
    ),
    KnownMarkers::with_sign("<|function_call|>", "<|message_sep|>", "<|function_call|>"),
    // Solar Open.
    KnownMarkers::new("<|tool_calls|>", "<|calls|>"),
    // Kimi K3.
    KnownMarkers::with_sign("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", "<|close|>"),
    // Hunyuan 3.
    KnownMarkers::with_sign(
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
        ":opensource",
    ),
    // Muse Glimmer.
    KnownMarkers::new("<atem:function_calls>", "</atem:function_calls>"),
    // InternLM 2 and 3.
    KnownMarkers::new("<|action_start|>", "<|action_end|>"),
    // Granite 20B, which has no end marker.
    KnownMarkers::without_end("<function_call>"),
];

/// The last marker of reasoning in a text.
pub struct LastMarker {
    /// True if it opens a thought, false if it closes one.
    pub is_open: bool,
    /// The markers that open and close thoughts of its kind.
    pub open: &'static str,
    pub close: &'static str,
}

/// The last known marker of reasoning in a text; the longest of those that begin at the same byte.
pub fn last_marker(text: &str) -> Option<LastMarker> {
    let last_of_each_kind = REASONING.iter().filter_map(|known| {
        let Markers { open, close } = &known.markers;
        let close = close.as_deref()?;
        [(&**open, true), (close, false)]
            .into_iter()
            .filter_map(|(marker, is_open)| {
                let start = text.rfind(marker)?;
                let last = LastMarker {
                    is_open,
                    open,
                    close,
                };
                Some(((start, marker.len()), last))
            })
            .max_by_key(|(start_and_length, _)| *start_and_length)
    });
    last_of_each_kind
        .max_by_key(|(start_and_length, _)| *start_and_length)
        .map(|(_, marker)| marker)
}

/// The reasoning with which a text begins, without its markers; `None` if it is not closed.
pub fn reasoning_of(text: &str) -> Option<&str> {
    REASONING.iter().find_map(|known| {
        let Markers { open, close } = &known.markers;
        let thought = text.trim_start().strip_prefix(&**open)?;
        let (reasoning, _) = thought.split_once(close.as_deref()?)?;
        Some(reasoning)
    })
}

/// The end of a text from an opening marker of reasoning on, if only blanks follow that.
pub fn opening_at_end(text: &str) -> Option<&str> {
    let trimmed = text.trim_end();
    let before = REASONING
        .iter()
        .find_map(|known| trimmed.strip_suffix(&*known.markers.open))?;
    text.get(before.len()..)
}
