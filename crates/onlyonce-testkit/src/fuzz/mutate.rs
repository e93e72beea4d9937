//! What becomes of an input: small changes to bytes, words, numbers and whole stretches.

/// Bytes that parsers treat in a way of their own.
const BYTES: &[u8] = b"\0\x01\x7f\x80\xc3\xed\xff\r\n\t \"'\\/:;,=&%+-_.*#<>()[]{}0179aAzZe";
/// Numbers at the ends of what fits.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "00",
    "255",
    "256",
    "65536",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551616",
    "1e400",
    "0.1",
];
/// The most changes that one input gets at once.
const MAX_CHANGES: usize = 5;
/// The longest stretch that is repeated, in times.
const MAX_REPEATED: usize = 40;

pub(super) struct Mutator {
    state: u64,
    words: Vec<Vec<u8>>,
    max_bytes: usize,
}

impl Mutator {
    pub(super) fn new(seed: u64, words: Vec<Vec<u8>>, max_bytes: usize) -> Self {
        Self {
            state: seed,
            words,
            max_bytes,
        }
    }

    /// One of `corpus`, changed: every other time one of the first `seeds`, and a little only, since much
    /// of what is changed often is refused at its first byte.
    pub(super) fn mutated(&mut self, corpus: &[Vec<u8>], seeds: usize) -> Vec<u8> {
        let among = match self.below(2) {
            0 => seeds,
            _ => corpus.len(),
        };
        let mut input = corpus[self.below(among)].clone();
        let changes = match self.below(2) {
            0 => 1,
            _ => 1 + self.below(MAX_CHANGES),
        };
        for _ in 0..changes {
            self.change(&mut input, corpus);
        }
        input.truncate(self.max_bytes);
        input
    }

    /// The next of SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    fn below(&mut self, end: usize) -> usize {
        match end as u64 {
            0 => 0,
            end => usize::try_from(self.next() % end).unwrap_or(0),
        }
    }

    /// A stretch of `input`, mostly a short one.
    fn stretch(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let from = self.below(input.len());
        let most = match self.below(4) {
            0 => input.len() - from,
            _ => (input.len() - from).min(8),
        };
        from..from + 1.min(most) + self.below(most)
    }

    fn byte(&mut self) -> u8 {
        match self.below(2) {
            0 => self.next().to_le_bytes()[0],
            _ => BYTES[self.below(BYTES.len())],
        }
    }

    fn word(&mut self) -> Vec<u8> {
        match self.below(self.words.len() + 1) {
            0 => NUMBERS[self.below(NUMBERS.len())].into(),
            at => self.words[at - 1].clone(),
        }
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        match self.below(13) {
            0 => input.insert(at, self.byte()),
            1..3 => {
                let word = self.word();
                input.splice(at..at, word);
            }
            3 => {
                // The end of another one.
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len());
                input.splice(at.., other[from..].iter().copied());
            }
            4 => {
                // A stretch of another one.
                let other = &corpus[self.below(corpus.len())];
                let stretch = self.stretch(other);
                input.splice(at..at, other[stretch].iter().copied());
            }
            _ if input.is_empty() => input.push(self.byte()),
            5 => {
                let at = self.below(input.len());
                input[at] = self.byte();
            }
            6 => {
                let at = self.below(input.len());
                input[at] ^= 1 << self.below(8);
            }
            7 => {
                let stretch = self.stretch(input);
                input.drain(stretch);
            }
            8 => {
                let stretch = self.stretch(input);
                let piece = input[stretch.clone()].to_vec();
                let times = match self.below(4) {
                    0 => self.below(MAX_REPEATED),
                    _ => 1,
                };
                let repeated = piece.repeat(times.min(self.max_bytes / piece.len().max(1)));
                input.splice(stretch.end..stretch.end, repeated);
            }
            9 => {
                let stretch = self.stretch(input);
                let piece: Vec<u8> = input.drain(stretch).collect();
                let at = self.below(input.len() + 1);
                input.splice(at..at, piece);
            }
            10 => {
                let (stretch, word) = (self.stretch(input), self.word());
                input.splice(stretch, word);
            }
            11 => self.change_number(input),
            _ => {
                let at = self.below(input.len());
                let delta = u8::try_from(1 + self.below(4)).unwrap_or(1);
                input[at] = match self.below(2) {
                    0 => input[at].wrapping_add(delta),
                    _ => input[at].wrapping_sub(delta),
                };
            }
        }
    }

    /// Another number in the place of a run of digits.
    fn change_number(&mut self, input: &mut Vec<u8>) {
        let from = self.below(input.len());
        let Some(start) = input[from..].iter().position(u8::is_ascii_digit) else {
            return;
        };
        let start = from + start;
        let length = input[start..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let number = match self.below(3) {
            0 => NUMBERS[self.below(NUMBERS.len())].to_owned(),
            1 => (self.next() >> self.below(64)).to_string(),
            _ => {
                let text = String::from_utf8_lossy(&input[start..start + length]);
                let number = text.parse::<u64>().unwrap_or(0);
                let number = match self.below(2) {
                    0 => number.wrapping_add(1),
                    _ => number.wrapping_sub(1),
                };
                number.to_string()
            }
        };
        input.splice(start..start + length, number.bytes());
    }
}
