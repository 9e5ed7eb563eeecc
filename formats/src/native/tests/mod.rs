mod cut_off;
mod hostile;
mod large;
mod members;
mod states;

use std::path::Path;

use proptest::prelude::*;

use super::member;
use super::*;
use crate::ReadBlocks;
use crate::testing::*;
use crate::{
    Encoding, Kind, Prompt, PromptContent, Reference, Result, RowBlock, RowForms, WindowSpec,
    Writer,
};

const N_VOCAB: u32 = 5;

/// Each window, and the bits of its decoded rows.
type Contents = Vec<(WindowSpec, Vec<u32>)>;

fn writer(header: &Header) -> Writer<Vec<u8>> {
    Writer::native(Vec::new(), Path::new("out"), header).unwrap()
}

fn write(header: &Header, windows: &[SampleWindow], at_once: usize) -> Vec<u8> {
    written(writer(header), windows, at_once)
}

/// Reads every byte, and every checksum.
fn verify(path: &Path) -> Result<()> {
    let reader = NativeReader::open(path)?;
    (0..reader.placed.len()).try_for_each(|i| reader.verify_window(i))
}

/// Everything a file holds, rows as bits.
fn read(path: &Path) -> Result<(Header, Contents)> {
    let reader = NativeReader::open(path)?;
    let mut windows = Vec::new();
    let mut reuse: Option<RowBlock> = None;
    for (i, entry) in reader.windows().enumerate() {
        let spec = reader.window(i)?;
        assert_eq!(*entry, spec.entry());
        let mut rows = Vec::new();
        for b in 0..reader.n_blocks(i) {
            let block = reader.block(i, b, reuse.take())?;
            assert_eq!(block.window, spec.window);
            assert_eq!(block.first_row as usize * N_VOCAB as usize, rows.len());
            rows.extend(bits(&block));
            reuse = Some(block);
        }
        windows.push((spec, rows));
    }
    Ok((reader.header.clone(), windows))
}

/// Windows whose rows have every form, in one piece too.
fn sample() -> (Header, Vec<SampleWindow>) {
    let mut windows = vec![
        window(2, 6, 1, N_VOCAB),
        window(0, 3, 3, N_VOCAB),
        window(1, 4, 2, N_VOCAB),
    ];
    windows[0].rows[7] = f32::NAN;
    windows[0].rows[10] = f32::NEG_INFINITY;
    windows[0].rows[13] = f32::NEG_INFINITY;
    windows[2].rows[4] = f32::INFINITY;
    (header(Encoding::U16, N_VOCAB, &windows), windows)
}

#[test]
fn prompts_may_be_longer_than_the_rest_of_the_header() {
    let (mut header, windows) = sample();
    let text = |i: usize| PromptContent::Text("\u{e9}\n".repeat(400_000 * i));
    let messages = serde_json::from_str(r#"[{"role": "user","content":"a"} ]"#).unwrap();
    let contents = [text(0), text(1), text(2), PromptContent::Messages(messages)];
    let prompt = |content| Prompt {
        spans: vec![(0, 3), (1, 2)],
        ..Prompt::new(content, 3)
    };
    header.prompts = Some(contents.map(prompt).into());
    header.chat_template = Some("ab".into());
    header.generated = Some(2);
    header.sampling = Some(crate::Sampling {
        temp: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        seed: 7,
    });
    header.spans = vec!["prompt".into(), "answer".into()];
    let bytes = write(&header, &windows, 9);
    assert_eq!(read(Scratch::new().file(&bytes)).unwrap().0, header);

    header.prompts = Some(vec![prompt(text(60)); 3]);
    let error = Writer::native(Vec::new(), Path::new("out"), &header).unwrap_err();
    assert!(
        error.to_string().contains("64 MiB: give fewer prompts"),
        "{error}"
    );
}

#[test]
fn groups_are_kept() {
    let (mut header, windows) = sample();
    header.groups = vec!["wiki".into(), "code".into()];
    header.window_groups = vec![(0, 2), (1, 40)];
    header.texts = vec![crate::common::text(), crate::common::text()];
    let scratch = Scratch::new();
    let path = scratch.file(&write(&header, &windows, 9));
    assert_eq!(read(path).unwrap().0, header);
    let about = Reference::open(path).unwrap().about().clone();
    assert_eq!(about.texts, header.texts);
    let groups = about.groups.clone().unwrap();
    assert_eq!(groups.names(), header.groups);
    assert_eq!([1, 2].map(|window: u32| groups.of_window(window)), [0, 1]);
    // What a converted file records.
    let specs: Vec<WindowSpec> = windows.iter().map(|window| window.spec.clone()).collect();
    let converted = Header::new(&about, Encoding::F32, &specs);
    assert_eq!(converted.window_groups, header.window_groups);
    // Without groups, no key is written.
    let json = serde_json::to_string(&sample().0).unwrap();
    assert!(!json.contains("group") && !json.contains("texts"), "{json}");
}

#[test]
fn the_forms_of_rows_are_counted() {
    let (header, windows) = sample();
    for at_once in [1, 2, 9] {
        let mut forms = RowForms::default();
        for window in &windows {
            forms += encode(&writer(&header).window_format(), window, at_once).1;
        }
        assert_eq!((forms.total, forms.exact), (header.n_rows, 2));
    }
}

#[test]
fn what_log_probabilities_mean_is_kept() {
    use crate::Values::*;
    for values in [Logits, LogProbabilities, FlooredLogProbabilities] {
        let mut about = crate::common::about(Kind::Kl, 8, N_VOCAB);
        about.values = values;
        let header = Header::new(&about, Encoding::U16, &[]);
        let bytes = write(&header, &[], 9);
        let read = crate::Reference::open(Scratch::new().file(&bytes)).unwrap();
        assert_eq!(read.about().values, values);
    }
}

#[test]
fn a_member_spelled_out() {
    let bytes = member::build([member::ROWS, 3, 2], &[9]);
    #[rustfmt::skip]
    let expected = [
        0x1f, 0x8b, 0x08, 0x04, 0, 0, 0, 0, 0, 0xff, // gzip, with an extra field
        32, 0, b'K', b'L', 28, 0, // its length, the subfield's id and length
        58, 0, 0, 0, // bytes of the member
        1, 0, 0, 0, // bytes of it inflated
        2, 0, 0, 0, // kind: rows
        3, 0, 0, 0, // window
        2, 0, 0, 0, // piece
    ];
    assert_eq!(bytes[..36], expected);
    assert_eq!(bytes[36..40], crc32fast::hash(&bytes[44..]).to_le_bytes());
    assert_eq!(bytes[40..44], crc32fast::hash(&bytes[..40]).to_le_bytes());
    assert_eq!(bytes[44..50], [1, 1, 0, 0xfe, 0xff, 9]); // stored
    assert_eq!(bytes[50..54], crc32fast::hash(&[9]).to_le_bytes());
    assert_eq!(bytes[54..], [1, 0, 0, 0]);
    let end = member::build_end(5, 6);
    assert_eq!(end.len(), member::END_BYTES);
    assert_eq!(
        end[36..52],
        [5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn writers_refuse_what_the_header_does_not_state() {
    let (header, windows) = sample();
    let format = writer(&header).window_format();
    let pieces = windows.iter().flat_map(|w| encode(&format, w, 9).0);
    let members: Vec<_> = pieces.map(|piece| piece.compress()).collect();
    // Members that are written, and whether the next one is refused, or the end.
    let all: Vec<usize> = (0..members.len()).collect();
    for (written, next) in [
        (&[][..], None),
        (&[][..], Some(1)),
        (&[0], Some(2)),
        (&[0], Some(0)),
        (&all, Some(0)),
        (&all[..all.len() - 1], None),
        (&all[..all.len() - 2], None),
    ] {
        let mut writer = writer(&header);
        for &i in written {
            writer.append(members[i].clone()).unwrap();
        }
        let refused = match next {
            Some(i) => writer.append(members[i].clone()).is_err(),
            None => writer.finish().is_err(),
        };
        assert!(refused, "{written:?} {next:?}");
    }
    let unfinished = format.begin(&windows[0].spec).unwrap().0;
    let error = unfinished.finish().unwrap_err().to_string();
    assert!(error.contains("window 2 lacks 5"), "{error}");
    let mut wrong = windows[1].spec.clone();
    wrong.tokens = vec![N_VOCAB];
    assert!(
        format.begin(&wrong).is_err(),
        "a token outside the vocabulary"
    );
    let long = window(0, 9, 9, N_VOCAB);
    assert!(format.begin(&long.spec).is_err(), "more tokens than n_ctx");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn round_trip(windows in any_windows(N_VOCAB), at_once in 1usize..9, f32 in any::<bool>()) {
        let encoding = if f32 { Encoding::F32 } else { Encoding::U16 };
        let header = header(encoding, N_VOCAB, &windows);
        let bytes = write(&header, &windows, at_once);
        let (read_header, read_windows) = read(Scratch::new().file(&bytes)).unwrap();
        prop_assert_eq!(read_header, header);
        prop_assert_eq!(read_windows.len(), windows.len());
        for (w, (spec, rows)) in windows.iter().zip(read_windows) {
            prop_assert_eq!(&w.spec, &spec);
            prop_assert_eq!(rows, decoded_bits(encoding, N_VOCAB, &w.rows));
        }
        // `gunzip -c` gives the plain stream.
        let mut plain = Vec::new();
        let mut gunzip = flate2::read::MultiGzDecoder::new(&bytes[..]);
        std::io::Read::read_to_end(&mut gunzip, &mut plain).unwrap();
        prop_assert!(plain.starts_with(MAGIC_LINE.as_bytes()));
    }

    #[test]
    fn the_index_decoder_never_panics(
        numbers in prop::collection::vec(prop_oneof![0u32..9, any::<u32>()], 0..40)
    ) {
        let (header, _) = sample();
        let plain = [&b"KL_INDEX"[..], bytemuck::cast_slice(&numbers)].concat();
        let _ = index::decode(&plain, &header, 0, 1000);
    }
}
