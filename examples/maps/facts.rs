//! The facts that recipes rest on: single tensors add up, and one type predicts the others.

use kl_formats::MapTensor;

use crate::bench::Bench;
use crate::{Like, Result, TYPES, kind};

/// Prints a row for each type: the sum of all tensors' KLDs, the whole model's beside it, and how well
/// the KLD of each tensor follows from its measured type.
pub fn tables(bench: &mut Bench<'_>, likes: &[Like]) -> Result<()> {
    let tensors = bench.tensors.clone();
    println!(
        "\n{} tensors, {} tokens in {} windows:\n",
        tensors.len(),
        bench.n_windows() as u32 * bench.n_rows(),
        bench.n_windows()
    );
    println!(
        "| type | bits | sum of singles | together | ratio | predicted, median | spread | worst |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for of in TYPES.map(kind) {
        let has_it = |tensor: &&MapTensor| bench.types(tensor).any(|kind| kind == of);
        if 2 * tensors.iter().filter(has_it).count() <= tensors.len() {
            continue;
        }
        let all = bench.all_at(of);
        let together = bench.mean(&all)?;
        let (mut sum, mut logs) = (0.0, Vec::new());
        for tensor in &tensors {
            let at = all[&tensor.name];
            let single = bench.mean(&bench.single(tensor, at))?;
            sum += single;
            let measured_at = bench.measured_type(tensor);
            if at != measured_at {
                let from = bench.mean(&bench.single(tensor, measured_at))?;
                let errors = bench.error(tensor, at) / bench.error(tensor, measured_at);
                logs.push((single / (from * errors)).ln());
            }
        }
        let ratio = together / sum;
        print!(
            "| {of} | {:.3} | {sum:.3e} | {together:.3e} | {ratio:.2} |",
            of.bits()
        );
        logs.sort_by(f64::total_cmp);
        match logs.len() {
            0 => println!(" measured | | |"),
            n => {
                let mean = logs.iter().sum::<f64>() / n as f64;
                let squares: f64 = logs.iter().map(|ln| (ln - mean).powi(2)).sum();
                let spread = (squares / (n as f64 - 1.0)).sqrt();
                let worst = logs
                    .iter()
                    .copied()
                    .max_by(|a, b| a.abs().total_cmp(&b.abs()));
                println!(
                    " {:.2} | {spread:.2} | {:.2} |",
                    quantile(&logs, 0.5).exp(),
                    worst.unwrap_or(0.0).exp()
                );
            }
        }
    }
    println!("\n| quant | bytes | mean KLD |\n|---|---:|---:|");
    for like in likes {
        println!(
            "| {} | {} | {:.3e} |",
            like.name,
            like.bytes,
            bench.mean(&like.mixture)?
        );
    }
    Ok(())
}

/// A quantile of sorted values, as numpy's.
pub fn quantile(sorted: &[f64], p: f64) -> f64 {
    let at = p * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (at - at.floor()) * (above - below)
}
