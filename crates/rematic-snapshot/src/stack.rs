//! Stacks: which line of whose code asked for memory, and in which part of a step.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// A stack of the snapshot. The first is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StackId(pub(crate) u32);

impl StackId {
    /// No stack was recorded, or it has no frames.
    pub const NONE: StackId = StackId(0);
}

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The file, with its folders.
    pub file: Arc<str>,
    /// The line; in a library, the address.
    pub line: u64,
    /// The function.
    pub function: Arc<str>,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {}", self.file, self.line, self.function)
    }
}

impl Frame {
    /// The file's name, the line and the function.
    #[must_use]
    pub fn short(&self) -> String {
        format!("{}:{} {}", self.name(), self.line, self.function)
    }

    fn name(&self) -> &str {
        self.file.rsplit(['/', '\\']).next().unwrap_or(&self.file)
    }

    /// Whether it is Python, not C++.
    #[must_use]
    pub fn is_python(&self) -> bool {
        self.file.ends_with(".py") || self.file.starts_with('<')
    }

    /// Whether it belongs to PyTorch or to Python itself: code that is the same for every model.
    fn is_torch(&self) -> bool {
        const PLACES: [&str; 9] = [
            "/site-packages/torch/",
            "/dist-packages/torch/",
            "/torch/nn/",
            "/torch/_",
            "/torch/optim/",
            "/torch/utils/",
            "/torch/autograd/",
            "/torch/distributed/",
            "torchinductor",
        ];
        self.file.starts_with('<') || PLACES.iter().any(|place| self.file.contains(place)) || self.is_python_itself()
    }

    fn is_python_itself(&self) -> bool {
        self.file.contains("/lib/python3") && !self.is_installed()
    }

    fn is_installed(&self) -> bool {
        self.file.contains("/site-packages/") || self.file.contains("/dist-packages/")
    }

    /// Whether it is neither installed nor PyTorch's.
    fn is_users(&self) -> bool {
        !self.is_torch() && !self.is_installed()
    }

    fn is_in(&self, place: &str) -> bool {
        self.file.ends_with(place) || self.file.contains(place)
    }

    fn is_module_call(&self) -> bool {
        &*self.function == "_call_impl" && self.is_in("nn/modules/module.py")
    }
}

/// The part of a training step in which memory was asked for, as far as stacks tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// It was there before the record begins.
    Before,
    /// The model was moved to the device, or made there.
    Model,
    /// A module's forward.
    Forward,
    /// A module's forward, once more, for activation checkpointing.
    Recomputed,
    /// Autograd, which runs on a thread without Python frames.
    Backward,
    /// The optimizer.
    Optimizer,
    /// Anything else.
    Other,
    /// There is no stack to tell.
    Unknown,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Part::Before => "before the record",
            Part::Model => "model",
            Part::Forward => "forward",
            Part::Recomputed => "recomputed",
            Part::Backward => "backward",
            Part::Optimizer => "optimizer",
            Part::Other => "other",
            Part::Unknown => "no stack",
        })
    }
}

/// What a stack says, in words.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The innermost line outside of PyTorch.
    pub line: String,
    /// The innermost line of the user's own files, where that is another.
    pub user: Option<String>,
    /// The calls of modules that led there, the outermost first.
    pub module: String,
    /// The module in which that was, by the lines in which it and those around it were called.
    pub called: String,
    /// The part of the step.
    pub part: Part,
}

/// All stacks of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    pub(crate) frames: Vec<Frame>,
    pub(crate) stacks: Vec<Vec<u32>>,
}

impl Stacks {
    /// The frames, the innermost first.
    pub fn frames(&self, id: StackId) -> impl DoubleEndedIterator<Item = &Frame> {
        let stack = self.stacks.get(id.0 as usize).map_or(&[][..], Vec::as_slice);
        stack.iter().filter_map(|frame| self.frames.get(*frame as usize))
    }

    /// Whether any stack has frames.
    #[must_use]
    pub fn any(&self) -> bool {
        self.stacks.iter().any(|stack| !stack.is_empty())
    }

    /// What a stack says.
    #[must_use]
    pub fn source(&self, id: StackId) -> Source {
        let frames: Vec<&Frame> = self.frames(id).filter(|frame| frame.is_python()).collect();
        let part = self.part(&frames);
        let line = frames.iter().find(|frame| !frame.is_torch()).or(frames.first());
        let user = frames.iter().find(|frame| frame.is_users()).filter(|user| Some(user) != line.as_ref());
        let fallback = || match part {
            Part::Backward => "backward, on autograd's thread".to_owned(),
            _ => "no stack was recorded".to_owned(),
        };
        Source {
            line: line.map_or_else(fallback, |line| line.short()),
            user: user.map(|user| user.short()),
            module: path(&module_calls(&frames)),
            called: path(&called(&module_calls(&frames))),
            part,
        }
    }

    fn part(&self, frames: &[&Frame]) -> Part {
        let any = |test: &dyn Fn(&Frame) -> bool| frames.iter().any(|frame| test(frame));
        if frames.is_empty() {
            // C++ frames alone are those of a thread that Python did not start. Where others have stacks, so is nothing.
            return if self.any() { Part::Backward } else { Part::Unknown };
        }
        if any(&|frame| frame.is_in("torch/optim/")) {
            Part::Optimizer
        } else if any(&|frame| {
            frame.is_in("torch/utils/checkpoint.py") && matches!(&*frame.function, "unpack_hook" | "recompute_fn")
        }) {
            Part::Recomputed
        } else if any(&|frame| frame.is_in("torch/autograd/graph.py") || &*frame.function == "backward") {
            Part::Backward
        } else if any(&Frame::is_module_call) {
            Part::Forward
        } else if any(&|frame| {
            frame.is_in("nn/modules/") && matches!(&*frame.function, "_apply" | "__init__" | "reset_parameters")
        }) {
            Part::Model
        } else {
            Part::Other
        }
    }
}

/// The frames of forwards that are running, the outermost first. Between the call of a module and its forward there may be
/// hooks and decorators, which are the same for all.
fn module_calls<'a>(frames: &[&'a Frame]) -> Vec<&'a Frame> {
    let mut calls = Vec::new();
    let mut inner = 0;
    for (at, frame) in frames.iter().enumerate() {
        if frame.is_module_call() {
            let between = &frames[inner..at];
            let forward = between.iter().rfind(|frame| &*frame.function == "forward").or(between.last());
            calls.extend(forward.copied());
            inner = at + 1;
        }
    }
    calls.reverse();
    calls
}

/// Without PyTorch's own modules, and without the line that runs in the innermost: what is left is where that was called.
fn called<'a>(calls: &[&'a Frame]) -> Vec<&'a Frame> {
    let mut called: Vec<&Frame> = calls.iter().copied().filter(|frame| !frame.is_torch()).collect();
    if called.len() == calls.len() {
        called.pop();
    }
    called
}

/// Lines in which modules were called from modules, as `train.py:44 › 30 › linear`. Stacks have no names of modules; those
/// of PyTorch are known by their file.
fn path(calls: &[&Frame]) -> String {
    let mut path = String::new();
    let mut last = "";
    for forward in calls {
        if !path.is_empty() {
            path += " › ";
        }
        let name = forward.name();
        if forward.is_torch() {
            path += name.trim_end_matches(".py");
        } else if name == last {
            path += &forward.line.to_string();
        } else {
            path += &format!("{name}:{}", forward.line);
            last = name;
        }
    }
    path
}
