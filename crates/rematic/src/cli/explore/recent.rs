/// What was used last, by name; what was not used for longest is forgotten.
pub(super) struct Recent<T> {
    most: usize,
    /// The last one is the newest.
    all: Vec<(String, T)>,
}

impl<T: Clone> Recent<T> {
    pub(super) fn new(most: usize) -> Self {
        Recent { most, all: Vec::new() }
    }

    pub(super) fn get(&mut self, name: &str) -> Option<T> {
        let at = self.all.iter().position(|(known, _)| known == name)?;
        let found = self.all.remove(at);
        let value = found.1.clone();
        self.all.push(found);
        Some(value)
    }

    pub(super) fn put(&mut self, name: &str, value: T) {
        self.forget(name);
        if self.all.len() == self.most {
            self.all.remove(0);
        }
        self.all.push((name.to_owned(), value));
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.all.retain(|(known, _)| known != name);
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut recent = Recent::new(2);
        recent.put("a", 1);
        recent.put("b", 2);
        assert_eq!(recent.get("a"), Some(1));
        recent.put("c", 3);
        assert_eq!((recent.get("a"), recent.get("b"), recent.get("c")), (Some(1), None, Some(3)));
        recent.forget("a");
        assert_eq!(recent.get("a"), None);
    }
}
