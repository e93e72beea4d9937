//! Fuzzing as plain tests: seeds are mutated, a target judges each input, and what fails is minimised.
//!
//! A target states a property by panicking where it does not hold, and returns what the input made the
//! program do. An input that does something new joins the seeds of this run: that, instead of coverage,
//! leads the search, so it needs no other compiler than the stable one.
//!
//! The short form has a fixed number of executions and a fixed seed, so that it is the same every time.
//!
//! | variable | |
//! |---|---|
//! | `ONLYONCE_SOAK=1` | 10 million executions of each target, another seed every time |
//! | `ONLYONCE_FUZZ_EXECUTIONS` | so many executions of each target |
//! | `ONLYONCE_FUZZ_SEED` | this seed |
//! | `ONLYONCE_FUZZ_INPUT` | this one input alone, in hexadecimal digits, as a failure prints it |

mod mutate;

use std::{
    any::Any,
    cell::Cell,
    collections::HashSet,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, RandomState},
    io,
    net::{Ipv4Addr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::net::{TcpSocket, TcpStream};

use mutate::Mutator;

/// Executions of each target in a long run.
pub const SOAK_EXECUTIONS: u64 = 10_000_000;
/// The longest input, in bytes, unless a target says otherwise.
const MAX_INPUT_BYTES: usize = 1_024;
/// The most inputs that are mutated again.
const MAX_CORPUS: usize = 2_000;
/// The most executions that minimising takes.
const MAX_MINIMISING: u32 = 4_000;

/// A target: where its inputs come from, and how many there are.
pub struct Fuzz {
    name: &'static str,
    executions: u64,
    max_bytes: usize,
    seeds: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
}

impl Fuzz {
    /// A target with `executions` in the short form.
    pub fn new(name: &'static str, executions: u64) -> Self {
        Self {
            name,
            executions,
            max_bytes: MAX_INPUT_BYTES,
            seeds: vec![Vec::new()],
            words: Vec::new(),
        }
    }

    /// Inputs to begin with. Each is executed as it is before any is mutated.
    pub fn seeds<T: AsRef<[u8]>>(mut self, seeds: impl IntoIterator<Item = T>) -> Self {
        let seeds = seeds.into_iter().map(|seed| seed.as_ref().to_vec());
        self.seeds.extend(seeds);
        self
    }

    /// Words of the language, which random bytes would hardly ever spell.
    pub fn words<T: AsRef<[u8]>>(mut self, words: impl IntoIterator<Item = T>) -> Self {
        let words = words.into_iter().map(|word| word.as_ref().to_vec());
        self.words.extend(words);
        self
    }

    /// The longest input, in bytes.
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Executes the target, and says how many times.
    ///
    /// # Panics
    /// At the first input that makes the target panic, with the input minimised.
    pub fn run<H: Hash>(self, mut target: impl FnMut(&[u8]) -> H) -> u64 {
        quieten_panics();
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut execute = |input: &[u8]| -> Result<u64, String> {
            QUIET.set(true);
            let done = catch_unwind(AssertUnwindSafe(|| hasher.hash_one(target(input))));
            QUIET.set(false);
            done.map_err(|panic| message(&*panic))
        };
        if let Some(input) = variable("ONLYONCE_FUZZ_INPUT") {
            let input = from_hex(&input);
            match execute(&input) {
                Ok(_) => eprintln!("fuzz {}: \"{}\" is fine", self.name, input.escape_ascii()),
                Err(message) => panic!("{message}"),
            }
            return 1;
        }
        let executions = number("ONLYONCE_FUZZ_EXECUTIONS").unwrap_or_else(|| {
            if super::soak::is_on() {
                SOAK_EXECUTIONS
            } else {
                self.executions
            }
        });
        let seed = number("ONLYONCE_FUZZ_SEED").unwrap_or_else(|| {
            if super::soak::is_on() {
                RandomState::new().hash_one(0)
            } else {
                1
            }
        });
        let mut mutator = Mutator::new(seed, self.words, self.max_bytes);
        let (mut corpus, mut seen) = (self.seeds, HashSet::new());
        let seeds = corpus.len();
        let executions = executions.max(seeds as u64);
        for case in 0..executions {
            let seed_at = usize::try_from(case).ok().filter(|at| *at < seeds);
            let input = match seed_at {
                Some(at) => corpus[at].clone(),
                None => mutator.mutated(&corpus, seeds),
            };
            match execute(&input) {
                Ok(behaviour) => {
                    let is_new = seen.insert(behaviour);
                    if is_new && seed_at.is_none() && corpus.len() < MAX_CORPUS {
                        corpus.push(input);
                    }
                }
                Err(found) => {
                    let (input, message) = minimised(input, found, &mut execute);
                    let (name, length) = (self.name, input.len());
                    let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
                    panic!(
                        "fuzz {name}: case {case} of seed {seed}: {message}\n\
                         {length} bytes, minimised: \"{}\"\n\
                         again with ONLYONCE_FUZZ_INPUT={hex} and this test alone",
                        input.escape_ascii(),
                    );
                }
            }
        }
        let (name, behaviours) = (self.name, seen.len());
        eprintln!("fuzz {name}: {executions} executions, {behaviours} behaviours, seed {seed}");
        executions
    }
}

/// A connection to `to` from a loopback address that changes each time: a long run would have no ports
/// left on a single one.
///
/// # Errors
/// What the system says.
pub async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, high, middle, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let from = Ipv4Addr::new(127, high % 200, middle, low.clamp(1, 254));
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// The smallest input found that still fails, and how it fails.
fn minimised(
    mut input: Vec<u8>,
    mut message: String,
    execute: &mut impl FnMut(&[u8]) -> Result<u64, String>,
) -> (Vec<u8>, String) {
    let mut left = MAX_MINIMISING;
    let mut size = input.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < input.len() && left > 0 {
            left -= 1;
            let mut shorter = input.clone();
            shorter.drain(at..(at + size).min(input.len()));
            match execute(&shorter) {
                Ok(_) => at += size,
                Err(other) => (input, message) = (shorter, other),
            }
        }
        size /= 2;
    }
    (input, message)
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Panics that are caught here are told once, in the end.
fn quieten_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                hook(panic);
            }
        }));
    });
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u64> {
    variable(name).map(|value| value.parse().expect("a number in the environment"))
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let digits = digits.map(|pair| std::str::from_utf8(pair).expect("hexadecimal digits"));
    digits
        .map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal digits"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a fault that three bytes in the right places make is found, and its input is those bytes.
    #[test]
    fn finds_and_minimises_what_fails() {
        let found = catch_unwind(|| {
            Fuzz::new("itself", 200_000)
                .seeds(["a harmless beginning"])
                .run(|input| {
                    let at = input.iter().position(|byte| *byte == b'{');
                    let after = at.map(|at| &input[at + 1..]).unwrap_or_default();
                    let closed = after.iter().position(|byte| *byte == b'}');
                    let twice = closed.is_some_and(|at| after[at + 1..].contains(&b'{'));
                    assert!(!twice, "opened twice");
                    (at.is_some(), closed.is_some())
                });
        });
        let message = message(&*found.expect_err("the fault is found"));
        assert!(message.contains("opened twice"), "{message}");
        assert!(message.contains("3 bytes, minimised: \"{}{\""), "{message}");
        assert!(message.contains("ONLYONCE_FUZZ_INPUT=7b7d7b"), "{message}");
    }

    #[test]
    fn a_seed_gives_the_same_inputs_every_time() {
        let inputs = || {
            let mut inputs = Vec::new();
            Fuzz::new("itself", 500)
                .seeds(["seed"])
                .words(["word"])
                .run(|input| {
                    inputs.push(input.to_vec());
                    input.len()
                });
            inputs
        };
        let once = inputs();
        assert_eq!(once, inputs());
        assert!(once.iter().collect::<HashSet<_>>().len() > 300);
    }
}
