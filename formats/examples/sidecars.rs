//! Writes made-up sidecars, to measure `kl report` with.
//!
//!     sidecars FOLDER N_FILES N_RECORDS
//!
//! Each file is of another model, 512 records a window, with the text of every token. KLDs are
//! heavy-tailed, and share what is hard about a token between models.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use kl_formats::{
    ModelIdentity, Random, ReferenceSummary, SidecarHeader, SidecarWriter, TokenRecord, TokenTexts,
};

const N_VOCAB: u32 = 32_000;
const N_CTX: u32 = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, n_files, n_records] = args.as_slice() else {
        return Err("usage: sidecars FOLDER N_FILES N_RECORDS".into());
    };
    std::fs::create_dir_all(folder)?;
    let (n_files, n_records): (u32, u32) = (n_files.parse()?, n_records.parse()?);
    let texts: TokenTexts = (0..N_VOCAB).map(|id| (id, format!(" word{id}"))).collect();
    for file in 0..n_files {
        write(Path::new(folder), file, n_records, &texts)?;
    }
    Ok(())
}

fn write(
    folder: &Path,
    file: u32,
    n_records: u32,
    texts: &TokenTexts,
) -> Result<(), Box<dyn Error>> {
    let reference = ReferenceSummary::default();
    let mut header = SidecarHeader::new(reference, N_CTX, N_VOCAB, Some(n_records.into()));
    let mut model = ModelIdentity::named(format!("model-{file:03}.gguf"));
    model.size_bytes = Some(1_000_000_000 + 37_000_000 * u64::from(file));
    model.n_params = Some(8_000_000_000);
    header.model_path = Some(format!("model-{file:03}.gguf"));
    header.model = Some(model);
    let path = folder.join(format!("model-{file:03}@ref.kls"));
    let mut writer = SidecarWriter::create(BufWriter::new(File::create(&path)?), &path, &header)?;
    let scale = 0.4 / f64::from(file + 1);
    let mut own = Noise(Random(u64::from(file) + 1_000));
    let mut shared = Noise(Random(7));
    for i in 0..n_records {
        let hard = (2.0 * shared.next_normal()).exp();
        let kld = 0.05 * scale * hard * own.next_normal().exp();
        let (position, token) = (i % N_CTX, i.wrapping_mul(2_654_435_761) % N_VOCAB);
        let ref_nll = shared.next_uniform() * 4.0;
        writer.push(&TokenRecord {
            window: i / N_CTX,
            position,
            token,
            flags: 0,
            ref_top: token,
            eval_top: if kld > 0.5 {
                (token + 1) % N_VOCAB
            } else {
                token
            },
            ref_top_rank: if kld > 0.5 { 2 } else { 1 },
            eval_top_rank: if kld > 0.5 { 2 } else { 1 },
            kld,
            reverse_kld: 1.1 * kld,
            ref_nll,
            eval_nll: (ref_nll + kld * own.next_normal()).max(0.0),
            ref_entropy: shared.next_uniform() * 6.0,
            ref_top_p: shared.next_uniform(),
            eval_top_p: 0.5,
            ref_unknown_p: 0.0,
            group: 0,
            span: 0,
            acceptance: 0.9,
        })?;
    }
    writer.finish(texts)?;
    Ok(())
}

struct Noise(Random);

impl Noise {
    fn next_uniform(&mut self) -> f64 {
        (self.0.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The sum of twelve uniform values: nearly normal.
    fn next_normal(&mut self) -> f64 {
        (0..12).map(|_| self.next_uniform()).sum::<f64>() - 6.0
    }
}
