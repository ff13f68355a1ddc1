//! Reads PTX into instructions with resolved registers, labels and symbols.

use std::collections::{HashMap, HashSet};

use crate::decode::Operation;
use crate::program::{Arg, Instruction, Kernel, SHARED_BASE, Space, Special, Type};

#[derive(Default)]
struct Scope {
    names: HashMap<String, usize>,
    labels: HashMap<String, usize>,
    /// Branches to labels that are not known yet.
    pending: Vec<(usize, String)>,
}

#[derive(Default)]
struct Parser {
    symbols: HashMap<String, (Space, u64)>,
    words: HashSet<&'static str>,
    scopes: Vec<Scope>,
    registers: usize,
    instructions: Vec<Instruction>,
    shared_bytes: usize,
    dynamic: Option<(String, usize)>,
    local_bytes: usize,
    globals: Vec<Box<[u8]>>,
}

type Result<T> = std::result::Result<T, String>;

/// The kernel in a module of one entry function.
pub fn parse(text: &str) -> Result<Kernel> {
    let text: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n");
    let entry = text.find(".entry").ok_or("no .entry")?;
    let mut parser = Parser::default();
    parser.scopes.push(Scope::default());
    for statement in text[..entry].split(';') {
        parser.declare(statement.trim())?;
    }
    let rest = &text[entry..];
    let body = rest.find('{').ok_or("no body")?;
    let (parameters, parameter_bytes) = parser.parameters(&rest[..body])?;
    parser.body(&rest[body..])?;
    Ok(Kernel {
        instructions: parser.instructions,
        registers: parser.registers,
        parameters,
        parameter_bytes,
        shared_bytes: parser.shared_bytes,
        local_bytes: parser.local_bytes,
        globals: parser.globals,
    })
}

fn align(value: usize, to: usize) -> usize {
    value.div_ceil(to) * to
}

impl Parser {
    /// A declaration at module level or in a body.
    fn declare(&mut self, text: &str) -> Result<()> {
        let space = text.split_whitespace().find_map(|word| match word {
            ".shared" => Some(Space::Shared),
            ".local" => Some(Space::Local),
            ".global" | ".const" => Some(Space::Global),
            _ => None,
        });
        let Some(space) = space else { return Ok(()) };
        let (declaration, value) = match text.split_once('=') {
            Some((declaration, value)) => (declaration, Some(value)),
            None => (text, None),
        };
        // Directives without a semicolon, such as .version, may precede it.
        let starts = [".shared", ".local", ".global", ".const"].map(|word| declaration.find(word));
        let start = starts.into_iter().flatten().min().unwrap_or(0);
        let (alignment, bytes, name, count) = variable(&declaration[start..])?;
        let address = match space {
            Space::Shared if count == 0 => {
                self.dynamic = Some((name, alignment));
                return Ok(());
            }
            Space::Shared => {
                let at = align(self.shared_bytes, alignment);
                self.shared_bytes = at + bytes * count;
                SHARED_BASE + at as u64
            }
            Space::Local => {
                let at = align(self.local_bytes, alignment);
                self.local_bytes = at + bytes * count;
                at as u64
            }
            _ => {
                let mut memory = vec![0u8; bytes * count];
                let values = value.unwrap_or("").trim().trim_matches(['{', '}']);
                for (at, item) in
                    values.split(',').filter(|item| !item.trim().is_empty()).enumerate()
                {
                    let bits = number(item.trim())?.to_le_bytes();
                    memory[at * bytes..][..bytes].copy_from_slice(&bits[..bytes]);
                }
                self.globals.push(memory.into());
                self.globals.last().map_or(0, |memory| memory.as_ptr().addr() as u64)
            }
        };
        self.symbols.insert(name, (space, address));
        Ok(())
    }

    fn parameters(&mut self, header: &str) -> Result<(Vec<(usize, usize)>, usize)> {
        let mut offset = 0;
        let mut parameters = Vec::new();
        let list = match (header.find('('), header.rfind(')')) {
            (Some(open), Some(close)) => &header[open + 1..close],
            _ => "",
        };
        for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let (alignment, bytes, name, count) = variable(text)?;
            offset = align(offset, alignment);
            self.symbols.insert(name, (Space::Param, offset as u64));
            parameters.push((bytes * count, offset));
            offset += bytes * count;
        }
        Ok((parameters, offset))
    }

    fn body(&mut self, text: &str) -> Result<()> {
        // Dynamic shared memory follows the static variables, which a body may still declare.
        for statement in text.split([';', '{', '}']).map(str::trim) {
            if statement.starts_with(".shared") {
                self.declare(statement)?;
            }
        }
        if let Some((name, alignment)) = self.dynamic.take() {
            // The base address is aligned to 1024 bytes.
            let at = align(self.shared_bytes, alignment);
            self.shared_bytes = at;
            self.symbols.insert(name, (Space::Shared, SHARED_BASE + at as u64));
        }
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('{') {
                self.scopes.push(Scope::default());
                rest = inner.trim_start();
            } else if let Some(inner) = rest.strip_prefix('}') {
                self.close()?;
                rest = inner.trim_start();
            } else if let Some(end) = label(rest) {
                let name = rest[..end].to_string();
                let at = self.instructions.len();
                self.scope().labels.insert(name, at);
                rest = rest[end + 1..].trim_start();
            } else {
                let end = rest.find(';').ok_or_else(|| format!("no semicolon: {rest:.80}"))?;
                let statement = rest[..end].trim();
                rest = rest[end + 1..].trim_start();
                self.statement(statement).map_err(|error| format!("{error} in: {statement}"))?;
            }
        }
        Ok(())
    }

    fn scope(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("the module's scope stays")
    }

    fn close(&mut self) -> Result<()> {
        let scope = self.scopes.pop().ok_or("an unmatched brace")?;
        for (at, name) in scope.pending {
            match scope.labels.get(&name) {
                Some(target) => self.instructions[at].target = *target,
                None if self.scopes.len() > 1 => self.scope().pending.push((at, name)),
                None => return Err(format!("no label {name}")),
            }
        }
        Ok(())
    }

    fn statement(&mut self, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if let Some(rest) = text.strip_prefix(".reg") {
            let (_, names) = rest.trim().split_once(char::is_whitespace).ok_or("no name")?;
            for name in names.split(',').map(str::trim) {
                match name.split_once('<') {
                    Some((stem, count)) => {
                        for at in 0..number(count.trim_end_matches('>'))? {
                            self.register(format!("{stem}{at}"));
                        }
                    }
                    None => self.register(name.to_string()),
                }
            }
            return Ok(());
        }
        if text.starts_with(".local") {
            return self.declare(text);
        }
        if text.starts_with('.') {
            return Ok(()); // .pragma, .loc, .shared (declared before)
        }
        let (guard, text) = match text.strip_prefix('@') {
            Some(rest) => {
                let (name, rest) = rest.split_once(char::is_whitespace).ok_or("no opcode")?;
                let wanted = !name.starts_with('!');
                (Some((self.find(name.trim_start_matches('!'))?, wanted)), rest.trim())
            }
            None => (None, text),
        };
        let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let words: Box<[&'static str]> =
            opcode.replace("::", ":").split('.').map(|word| self.intern(word)).collect();
        let name = match words.get(1) {
            Some(&modifier @ ("lo" | "hi" | "wide" | "NaN" | "shiftamt")) => {
                self.intern(&format!("{}.{modifier}", words[0]))
            }
            _ => words[0],
        };
        let kind = words.iter().rev().find_map(|word| Type::parse(word));
        let space = words.iter().find_map(|word| Space::parse(word)).unwrap_or(Space::Generic);
        let mut args = Vec::new();
        let at = self.instructions.len();
        if words[0] == "bra" {
            self.scope().pending.push((at, operands.trim().to_string()));
        } else {
            for operand in split(operands) {
                args.push(self.operand(operand)?);
            }
        }
        let args = args.into();
        let operation = Operation::decode(&words, name, kind);
        let target = 0;
        self.instructions.push(Instruction {
            guard,
            words,
            name,
            operation,
            args,
            kind,
            space,
            target,
        });
        Ok(())
    }

    /// The word, which lives as long as the process: kernels are never freed either.
    fn intern(&mut self, word: &str) -> &'static str {
        if let Some(known) = self.words.get(word) {
            return known;
        }
        let word: &'static str = Box::leak(Box::from(word));
        self.words.insert(word);
        word
    }

    fn register(&mut self, name: String) {
        let slot = self.registers;
        self.registers += 1;
        self.scope().names.insert(name, slot);
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.names.get(name).copied())
            .ok_or_else(|| format!("no register {name}"))
    }

    fn operand(&mut self, text: &str) -> Result<Arg> {
        if text == "_" {
            return Ok(Arg::Sink);
        }
        if let Some(inner) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            return Ok(Arg::Vector(self.operands(inner)?));
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            if let Some((base, offset)) = inner.split_once('+') {
                let base = self.operand(base.trim())?;
                return Ok(Arg::Memory([base].into(), number(offset.trim())? as i64));
            }
            return Ok(Arg::Memory(self.operands(inner)?, 0));
        }
        if let Some((first, second)) = text.split_once('|') {
            let pair = [self.operand(first.trim())?, self.operand(second.trim())?];
            return Ok(Arg::Pair(pair.into()));
        }
        if let Some(name) = text.strip_prefix('!') {
            return Ok(Arg::Not(self.find(name)?));
        }
        if let Ok(slot) = self.find(text) {
            return Ok(Arg::Register(slot));
        }
        if let Some((space, address)) = self.symbols.get(text) {
            return Ok(Arg::Symbol(*space, *address));
        }
        if let Some(special) = special(text) {
            return Ok(Arg::Special(special));
        }
        number(text).map(Arg::Immediate)
    }

    fn operands(&mut self, text: &str) -> Result<Box<[Arg]>> {
        split(text).into_iter().map(|text| self.operand(text)).collect()
    }
}

/// The alignment, element size and name of `.align 16 .b8 name[123]`, and its element count.
fn variable(text: &str) -> Result<(usize, usize, String, usize)> {
    let mut words = text.split_whitespace().peekable();
    let (mut alignment, mut bytes) = (1, 1);
    while let Some(word) = words.next() {
        if word == ".align" {
            alignment = words.next().and_then(|n| n.parse().ok()).ok_or("no alignment")?;
        } else if let Some(kind) = word.strip_prefix('.') {
            match Type::parse(kind) {
                Some(kind) => bytes = kind.bytes(),
                None if matches!(kind, "param" | "ptr" | "visible" | "extern" | "global") => {}
                None if matches!(kind, "shared" | "local" | "const" | "weak") => {}
                None => return Err(format!("unknown declaration: {text}")),
            }
        } else {
            let rest: String = std::iter::once(word).chain(words).collect();
            let (name, count) = match rest.split_once('[') {
                Some((name, count)) => {
                    let count = count.split(']').next().unwrap_or("");
                    (name, if count.is_empty() { 0 } else { number(count)? as usize })
                }
                None => (rest.as_str(), 1),
            };
            return Ok((alignment.max(bytes), bytes, name.trim().to_string(), count));
        }
    }
    Err(format!("no name: {text}"))
}

fn special(text: &str) -> Option<Special> {
    let (name, dimension) = text.split_once('.').unwrap_or((text, "x"));
    let at = ["x", "y", "z"].iter().position(|known| *known == dimension)?;
    Some(match name {
        "%tid" => Special::Thread(at),
        "%ntid" => Special::ThreadCount(at),
        "%ctaid" => Special::Cta(at),
        "%nctaid" => Special::CtaCount(at),
        "%laneid" => Special::Lane,
        "%cluster_ctarank" => Special::ClusterRank,
        _ => return None,
    })
}

/// The length of a label at the start of the text.
fn label(text: &str) -> Option<usize> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_$%".contains(c);
    let end = text.find(|c| !is_name(c))?;
    let rest = &text[end..];
    (end > 0 && rest.starts_with(':') && !rest.starts_with("::")).then_some(end)
}

/// Splits at commas outside of brackets and braces.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn number(text: &str) -> Result<u64> {
    let wrong = || format!("not a number: {text}");
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let digits = digits.trim_end_matches('U');
    let value = if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16).map_err(|_| wrong())?
    } else if let Some(hex) = digits.strip_prefix("0f").or_else(|| digits.strip_prefix("0d")) {
        u64::from_str_radix(hex, 16).map_err(|_| wrong())?
    } else {
        digits.parse().map_err(|_| wrong())?
    };
    Ok(if negative { value.wrapping_neg() } else { value })
}
