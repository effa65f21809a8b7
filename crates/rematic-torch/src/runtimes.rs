//! Time as torch's `RuntimeEstimator` adds it up, while a program runs.

use std::collections::HashMap;

use crate::Direction;

/// Milliseconds of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runtime {
    /// The name.
    pub name: String,
    /// In forward; `None` if it ran no operator there.
    pub forward: Option<f64>,
    /// In backward; `None` if it ran no operator there.
    pub backward: Option<f64>,
}

/// The time of every module, and of all together.
#[derive(Clone, Debug, Default)]
pub struct Runtimes {
    places: HashMap<String, usize>,
    rows: Vec<Runtime>,
    running: Vec<usize>,
    total: f64,
}

impl Runtimes {
    /// A module of this name runs from now on.
    pub fn enter(&mut self, name: &str) {
        let place = self.place(name);
        if !self.running.contains(&place) {
            self.running.push(place);
        }
    }

    /// No module of this name runs any more.
    pub fn leave(&mut self, name: &str) {
        let place = self.place(name);
        self.running.retain(|other| *other != place);
    }

    /// No module runs any more.
    pub fn leave_all(&mut self) {
        self.running.clear();
    }

    /// An operator took so many milliseconds; they count for every name that runs.
    pub fn add(&mut self, millis: f64, direction: Direction) {
        for &place in &self.running {
            let row = &mut self.rows[place];
            let sum = match direction {
                Direction::Forward => &mut row.forward,
                Direction::Backward => &mut row.backward,
            };
            *sum = Some(sum.unwrap_or(0.0) + millis);
        }
        self.total += millis;
    }

    /// The time of everything.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.total
    }

    /// The names that ran operators, in the order in which they first ran.
    pub fn rows(&self) -> impl Iterator<Item = &Runtime> {
        self.rows.iter().filter(|row| row.forward.is_some() || row.backward.is_some())
    }

    fn place(&mut self, name: &str) -> usize {
        if let Some(&place) = self.places.get(name) {
            return place;
        }
        self.rows.push(Runtime { name: name.to_owned(), ..Runtime::default() });
        self.places.insert(name.to_owned(), self.rows.len() - 1);
        self.rows.len() - 1
    }
}

/// Milliseconds of an operator by torch's roofline: half its flops over three quarters of the peak (TFLOP/s), or its bytes
/// over the memory's bandwidth (GB/s), whichever is more. What a device does not say takes no time.
#[must_use]
pub fn torch_roofline(flops: f64, tflops: f64, bytes: f64, gigabytes_per_second: f64) -> f64 {
    let peak = tflops * 1e12;
    let compute = if peak == 0.0 { 0.0 } else { (flops / 2.0 / (0.75 * peak)) * 1e9 };
    let transfer = if gigabytes_per_second == 0.0 { 0.0 } else { bytes / gigabytes_per_second };
    transfer.max(compute) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_counts_for_all_around_it() {
        let mut runtimes = Runtimes::default();
        runtimes.enter("Global");
        runtimes.enter("M");
        runtimes.enter("M");
        runtimes.add(1.0, Direction::Forward);
        runtimes.leave("M");
        runtimes.enter("idle");
        runtimes.leave("idle");
        runtimes.add(0.5, Direction::Backward);
        let row = |name: &str, forward, backward| Runtime { name: name.into(), forward, backward };
        let rows: Vec<Runtime> = runtimes.rows().cloned().collect();
        assert_eq!(rows, [row("Global", Some(1.0), Some(0.5)), row("M", Some(1.0), None)]);
        assert_eq!(runtimes.total(), 1.5);
        runtimes.leave_all();
        runtimes.add(1.0, Direction::Forward);
        assert_eq!((runtimes.total(), runtimes.rows().next().unwrap().forward), (2.5, Some(1.0)));
    }

    #[test]
    fn the_slower_of_computing_and_moving() {
        // 3 TFLOP at 2 TFLOP/s: 1.5 TMAC over 1.5 T/s. 4 GB at 2 GB/s.
        assert_eq!(torch_roofline(3e12, 2.0, 0.0, 2.0), 1000.0);
        assert_eq!(torch_roofline(3e12, 2.0, 4e9, 2.0), 2000.0);
        assert_eq!(torch_roofline(3e12, 0.0, 4e9, 0.0), 0.0);
    }
}
