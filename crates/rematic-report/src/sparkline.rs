//! Memory over the step in one line of text. A cell is as high as the highest of its moments, so that the peak is never lost,
//! and heights start at 0, so that they can be compared.

use rematic_trace::{Bytes, Phase};

const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The moments in at most `width` cells, on a scale from 0.
pub(crate) fn line(totals: impl ExactSizeIterator<Item = Bytes>, scale: Bytes, width: usize) -> String {
    let (count, cells) = (totals.len(), totals.len().min(width));
    let mut highest = vec![Bytes(0); cells];
    for (index, total) in totals.enumerate() {
        let cell = &mut highest[cell(index, count, cells)];
        *cell = total.max(*cell);
    }
    highest.into_iter().map(|total| height(total, scale)).collect()
}

/// Where the phases of these moments begin, to stand under the line; as much of the names as fits.
pub(crate) fn phases(phases: impl ExactSizeIterator<Item = Phase>, width: usize) -> String {
    let (count, cells) = (phases.len(), phases.len().min(width));
    let mut starts: Vec<(usize, Phase)> = Vec::new();
    for (index, phase) in phases.enumerate() {
        if starts.last().is_none_or(|(_, last)| *last != phase) {
            starts.push((cell(index, count, cells), phase));
        }
    }
    let mut text = String::new();
    for (number, &(start, phase)) in starts.iter().enumerate() {
        let end = starts.get(number + 1).map_or(width, |(next, _)| *next);
        let blanks = start.saturating_sub(text.chars().count());
        text += &" ".repeat(blanks);
        // A blank before the next name.
        let last = number + 1 == starts.len();
        let room = (end - start).saturating_sub(usize::from(!last));
        text.extend(format!("└{phase}").chars().take(room));
    }
    text
}

fn cell(index: usize, count: usize, cells: usize) -> usize {
    index * cells / count.max(1)
}

/// To the nearest eighth; only nothing looks like nothing.
fn height(total: Bytes, scale: Bytes) -> char {
    let eighths = (u128::from(total.0) * 16 / u128::from(scale.0.max(1))).div_ceil(2);
    match usize::try_from(eighths).unwrap_or(HEIGHTS.len()) {
        0 if total == Bytes(0) => ' ',
        eighths => HEIGHTS[eighths.clamp(1, HEIGHTS.len()) - 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(totals: &[u64], scale: u64, width: usize) -> String {
        line(totals.iter().map(|total| Bytes(*total)), Bytes(scale), width)
    }

    #[test]
    fn heights_start_at_nothing() {
        assert_eq!(drawn(&[0, 1, 2, 3, 4, 5, 6, 7, 8], 8, 100), " ▁▂▃▄▅▆▇█");
        assert_eq!(drawn(&[8, 8], 16, 100), "▄▄");
        assert_eq!(drawn(&[1, 749, 751, 1000], 1000, 100), "▁▆▆█");
        assert_eq!(drawn(&[936, 938], 1000, 100), "▇█");
        assert_eq!(drawn(&[], 16, 100), "");
        assert_eq!(drawn(&[0, 0], 0, 100), "  ");
    }

    #[test]
    fn the_peak_is_never_lost() {
        for place in 0..1000 {
            let totals: Vec<u64> = (0..1000).map(|index| if index == place { 800 } else { 100 }).collect();
            for width in [1, 7, 80, 999] {
                let drawn = drawn(&totals, 800, width);
                assert_eq!(drawn.chars().count(), width);
                assert_eq!(drawn.chars().filter(|cell| *cell == '█').count(), 1, "{place} in {width}");
            }
        }
    }

    #[test]
    fn phases_stand_under_their_first_cells() {
        let step = |counts: [usize; 3]| {
            let of = |(phase, count): (Phase, usize)| vec![phase; count];
            [Phase::Forward, Phase::Backward, Phase::Optimizer].into_iter().zip(counts).flat_map(of).collect::<Vec<_>>()
        };
        let under = |counts, width| phases(step(counts).into_iter(), width);
        assert_eq!(under([10, 20, 15], 45), "└forward  └backward           └optimizer");
        assert_eq!(under([100, 200, 150], 45), "└forward  └backward           └optimizer");
        assert_eq!(under([4, 20, 3], 27), "└fo └backward           └op");
        assert_eq!(under([10, 0, 0], 45), "└forward");
        assert_eq!(under([0, 0, 0], 45), "");
    }

    #[test]
    fn lines_and_names_have_the_same_cells() {
        let totals = [1, 1, 1, 1, 1, 1, 8, 8, 8].map(Bytes);
        let phases = [[Phase::Forward; 6].as_slice(), &[Phase::Backward; 3]].concat();
        for width in 3..12 {
            let line = line(totals.into_iter(), Bytes(8), width);
            let names = super::phases(phases.iter().copied(), width);
            let begins = |text: &str, mark: char| text.chars().position(|cell| cell == mark);
            let second = names.chars().skip(1).position(|cell| cell == '└').map(|place| place + 1);
            assert_eq!(begins(&line, '█'), second, "{line}\n{names}");
        }
    }
}
