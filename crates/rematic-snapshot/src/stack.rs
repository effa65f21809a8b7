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
        const PLACES: [&str; 8] = [
            "/site-packages/torch/",
            "/dist-packages/torch/",
            "/torch/nn/",
            "/torch/_",
            "/torch/optim/",
            "/torch/utils/",
            "/torch/autograd/",
            "/torch/distributed/",
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

    fn folders(&self) -> impl DoubleEndedIterator<Item = &str> {
        let name = self.name();
        self.file.strip_suffix(name).unwrap_or("").split(['/', '\\']).filter(|folder| !folder.is_empty())
    }

    /// Whether it stands between the program and PyTorch in a rehearsal, where it answers for what kernels would write.
    fn is_rehearsals(&self) -> bool {
        self.folders().any(|folder| folder == "rematic_rehearsal")
    }

    /// Whether TorchInductor wrote it: `xy/cxy….py` below its cache, which is called `torchinductor_USER` or, in a
    /// rehearsal, `inductor`. Below any other it is known by its name, a hash.
    fn is_generated(&self) -> bool {
        const HASH: usize = 40;
        if self.folders().any(|folder| folder.starts_with("torchinductor_")) {
            return true;
        }
        let (Some(stem), Some(parent)) = (self.name().strip_suffix(".py"), self.folders().next_back()) else {
            return false;
        };
        let is_named_so = parent.len() == 2 && stem.strip_prefix('c').is_some_and(|rest| rest.starts_with(parent));
        let is_base_32 = |letter: u8| matches!(letter, b'a'..=b'z' | b'2'..=b'7');
        is_named_so
            && stem.bytes().all(is_base_32)
            && (stem.len() >= HASH || self.folders().any(|folder| folder == "inductor"))
    }

    fn is_in(&self, place: &str) -> bool {
        self.file.ends_with(place) || self.file.contains(place)
    }

    /// Whether it is only passed through on the way to a forward. A module that `torch.compile` returned has nothing else.
    fn is_way_to_forward(&self) -> bool {
        self.is_in("nn/modules/module.py") || self.is_in("torch/_dynamo/")
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
        let python = || self.frames(id).filter(|frame| frame.is_python());
        let is_compiled = python().any(Frame::is_generated);
        // Neither the rehearsal's frames nor generated ones are anybody's lines, and without them a stack is as it would be.
        let frames: Vec<&Frame> = python().filter(|frame| !frame.is_rehearsals() && !frame.is_generated()).collect();
        let part = self.part(&frames);
        // A compiled backward has frames of PyTorch alone, which run whatever was compiled.
        let torchs = frames.first().filter(|_| !(is_compiled && part == Part::Backward));
        let line = frames.iter().find(|frame| !frame.is_torch()).or(torchs);
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
            let between = || frames[inner..at].iter().filter(|frame| !frame.is_way_to_forward());
            let forward = between().rfind(|frame| &*frame.function == "forward").or(between().next_back());
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

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "cabqzxu57ixk3x2yqv4jhtfbsrm5ndd6oewlgcpq7a2n3tkvyhmz";

    fn frame(file: &str, line: u64, function: &str) -> Frame {
        Frame { file: file.into(), line, function: function.into() }
    }

    /// What the first of two stacks says, the second of which is there so that some stack has frames.
    fn source(frames: Vec<Frame>) -> Source {
        let count = u32::try_from(frames.len()).unwrap();
        let mut stacks = Stacks { frames, stacks: vec![vec![], (0..count).collect(), vec![count]] };
        stacks.frames.push(frame("/home/user/train.py", 1, "<module>"));
        stacks.source(StackId(1))
    }

    fn hook() -> Frame {
        frame("/tmp/rehearsal-1/rematic_rehearsal/values.py", 68, "run")
    }

    fn forward() -> Vec<Frame> {
        vec![
            frame("/home/user/train.py", 18, "forward"),
            frame("/venv/lib/python3.13/site-packages/torch/nn/modules/module.py", 1790, "_call_impl"),
            frame("/home/user/train.py", 44, "step"),
        ]
    }

    #[test]
    fn the_rehearsals_hook_is_nobodys_line() {
        for hook in [hook(), frame("C:\\Temp\\rematic_rehearsal\\values.py", 68, "run")] {
            let hooked = source([vec![hook.clone()], forward()].concat());
            assert_eq!(hooked, source(forward()), "{hook}");
            assert_eq!((hooked.line.as_str(), hooked.part), ("train.py:18 forward", Part::Forward));
            assert_eq!(hooked.module, "train.py:18");
        }
    }

    #[test]
    fn a_hook_on_autograds_thread_is_backward() {
        let hooked = source(vec![hook()]);
        assert_eq!((hooked.line.as_str(), hooked.part), ("backward, on autograd's thread", Part::Backward));
        assert_eq!(hooked.user, None);
    }

    #[test]
    fn generated_code_is_nobodys_line() {
        let compiled = "/venv/lib/python3.13/site-packages/torch/_inductor/output_code.py";
        for cache in ["/home/user/.cache/rematic/inductor", "/tmp/torchinductor_user", "/scratch/compiled"] {
            let generated = frame(&format!("{cache}/ab/{HASH}.py"), 120, "call");
            let run = vec![generated.clone(), frame(compiled, 650, "__call__")];
            let found = source([run.clone(), forward()].concat());
            assert_eq!((found.line.as_str(), found.part), ("train.py:18 forward", Part::Forward), "{cache}");
            assert_eq!(found.module, "train.py:18", "{cache}");
            let wrappers = "/venv/lib/python3.13/site-packages/torch/_functorch/_aot_autograd/runtime_wrappers.py";
            let backward = source([run, vec![frame(wrappers, 2400, "backward")]].concat());
            assert_eq!(backward.line, "backward, on autograd's thread", "{cache}");
            assert_eq!((backward.part, backward.user), (Part::Backward, None), "{cache}");
        }
    }

    /// The module that `torch.compile` returns calls the one that it was given.
    #[test]
    fn a_compiled_modules_wrapper_is_no_module() {
        let torch = "/venv/lib/python3.13/site-packages/torch";
        let module = |line, function| frame(&format!("{torch}/nn/modules/module.py"), line, function);
        let mut frames = forward();
        frames.insert(1, module(1841, "inner"));
        let way = [
            module(1787, "_wrapped_call_impl"),
            frame(&format!("{torch}/_dynamo/eval_frame.py"), 1265, "compile_wrapper"),
            module(1841, "inner"),
            module(1893, "_call_impl"),
        ];
        frames.splice(3..3, way);
        let found = source(frames);
        assert_eq!((found.module.as_str(), found.called.as_str()), ("train.py:18", ""));
        assert_eq!((found.line.as_str(), found.part), ("train.py:18 forward", Part::Forward));
    }

    #[test]
    fn a_users_folder_of_such_a_name_stays_the_users() {
        for file in ["/home/user/inductor/train.py", "/home/user/ab/cabs.py", "/home/user/rematic_rehearsal.py"] {
            assert_eq!(source(vec![frame(file, 7, "step")]).line, frame(file, 7, "step").short(), "{file}");
        }
    }
}
