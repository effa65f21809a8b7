//! The card that is not there, as the command that rehearses describes it.

use std::env;
use std::sync::OnceLock;

/// What the environment says of the card. The names are those that the `rehearse` verb sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// What `torch.cuda.get_device_name()` says.
    pub name: String,
    /// Compute capability, 90 for 9.0.
    pub capability: i32,
    /// Multiprocessors.
    pub processors: i32,
    /// All memory of a card.
    pub total: usize,
    /// What of it is taken before anything runs: the CUDA context.
    pub context: usize,
    /// How many cards.
    pub count: i32,
}

/// Limits of a chip that kernels ask for: CUDA's programming guide, "Technical specifications per compute capability".
pub struct Chip {
    pub shared_per_block: i32,
    pub shared_per_processor: i32,
    pub threads_per_processor: i32,
    pub blocks_per_processor: i32,
    pub l2_bytes: i32,
}

static CARD: OnceLock<Card> = OnceLock::new();

/// The card, read once.
pub fn card() -> &'static Card {
    CARD.get_or_init(|| Card::from_variables(|name| env::var(name).ok()))
}

impl Card {
    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Card {
        let number =
            |name: &str, otherwise: u64| variable(name).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
        let small = |name: &str, otherwise: i32| i32::try_from(number(name, otherwise as u64)).unwrap_or(otherwise);
        Card {
            name: variable("REMATIC_REHEARSAL_CARD").unwrap_or_else(|| "NVIDIA H100 80GB HBM3".to_owned()),
            capability: small("REMATIC_REHEARSAL_CAPABILITY", 90),
            processors: small("REMATIC_REHEARSAL_PROCESSORS", 132),
            total: number("REMATIC_REHEARSAL_BYTES", 80 << 30) as usize,
            context: number("REMATIC_REHEARSAL_CONTEXT", 0) as usize,
            count: small("REMATIC_REHEARSAL_COUNT", 1),
        }
    }

    /// What allocations may take together.
    pub fn room(&self) -> usize {
        self.total.saturating_sub(self.context)
    }

    pub fn chip(&self) -> Chip {
        // KiB of shared memory for a block and for a multiprocessor, threads, blocks, MiB of L2.
        let (block, processor, threads, blocks, l2) = match self.capability {
            ..75 => (96, 96, 2048, 32, 6),
            75..80 => (64, 64, 1024, 16, 6),
            80..86 => (163, 164, 2048, 32, 40),
            86..89 => (99, 100, 1536, 16, 6),
            89..90 => (99, 100, 1536, 24, 72),
            90..100 => (227, 228, 2048, 32, 50),
            100..120 => (227, 228, 2048, 32, 126),
            _ => (99, 100, 1536, 24, 96),
        };
        Chip {
            shared_per_block: block << 10,
            shared_per_processor: processor << 10,
            threads_per_processor: threads,
            blocks_per_processor: blocks,
            l2_bytes: l2 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_describes_the_card() {
        let card = Card::from_variables(|name| match name {
            "REMATIC_REHEARSAL_BYTES" => Some("1000".to_owned()),
            "REMATIC_REHEARSAL_CONTEXT" => Some("1".to_owned()),
            "REMATIC_REHEARSAL_COUNT" => Some("eight".to_owned()),
            _ => None,
        });
        assert_eq!((card.room(), card.count, card.capability), (999, 1, 90));
    }

    #[test]
    fn chips_have_the_limits_of_the_programming_guide() {
        let of = |capability| Card { capability, ..Card::from_variables(|_| None) }.chip();
        assert_eq!(
            (of(80).shared_per_block, of(90).shared_per_block, of(89).shared_per_block),
            (166_912, 232_448, 101_376)
        );
        assert_eq!((of(80).threads_per_processor, of(86).blocks_per_processor), (2048, 16));
    }
}
