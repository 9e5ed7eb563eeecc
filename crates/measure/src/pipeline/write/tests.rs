use std::path::Path;

use kl_formats::{About, Encoding, Header, Kind};

use super::*;

#[test]
fn pieces_wait_in_their_lane_until_earlier_windows_are_whole() {
    let window = |window| WindowSpec {
        window,
        tokens: vec![1; 8],
        first_scored: 0,
        n_rows: 8,
    };
    let windows = [window(0), window(1)];
    let rows: Vec<Vec<f32>> = (0..8u8).map(|i| vec![f32::from(i); 5]).collect();
    let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    let written = |is_interleaved: bool| {
        let about = About::new(Kind::Kl, "", 8, 5);
        let mut header = Header::new(&about, Encoding::F32, &windows);
        header.rows_per_piece = 1;
        let writer = Writer::native(Vec::new(), Path::new("out"), &header).unwrap();
        let mut writer = ParallelWriter::start(writer, 2, 1).unwrap();
        // Less than a window has.
        writer.lane_depth = 2;
        let mut first = writer.begin(&windows[0]).unwrap();
        if !is_interleaved {
            first.push(&rows).unwrap();
            first.finish().unwrap();
            let mut second = writer.begin(&windows[1]).unwrap();
            second.push(&rows).unwrap();
            second.finish().unwrap();
            return writer.finish().unwrap();
        }
        let mut second = writer.begin(&windows[1]).unwrap();
        std::thread::scope(|scope| {
            let rows = &rows;
            let second = scope.spawn(move || {
                second.push(rows).unwrap();
                second.finish().unwrap();
            });
            for row in rows {
                assert!(!second.is_finished());
                first.push(&[row]).unwrap();
            }
            first.finish().unwrap();
        });
        writer.finish().unwrap()
    };
    assert!(written(true) == written(false));
}
