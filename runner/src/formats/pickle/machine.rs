//! The opcodes: a stack of values, marks in it, and a memo of values to be had again.

use std::collections::HashMap;

use bytes::Bytes;
use ckpt_engine::{Error, Result, ResultExt};

use super::calls::{self, Global};
use super::reader::Reader;
use super::text;
use super::value::{Heap, Object, Value};

/// The newest protocol there is.
const MAX_PROTOCOL: u8 = 5;

/// What an entry of the memo takes, also while the memo grows.
const MEMO_ENTRY: usize = 64;

struct Machine {
    reader: Reader,
    heap: Heap,
    stack: Vec<Value>,
    /// How high the stack was at each mark.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
}

/// Follows a pickle to its end and returns what it made.
///
/// The end of the pickle has to be the end of the file: Python would read on with the next call, and what it would then find, such as a
/// second dict, must not get lost without a word.
pub(super) fn run(file: &Bytes) -> Result<(Heap, Value)> {
    let mut machine = Machine {
        reader: Reader::new(file.clone()),
        heap: Heap::new(file.len()),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    loop {
        let at = machine.reader.at();
        let opcode = machine.reader.u8()?;
        if opcode == b'.' {
            break;
        }
        machine.step(opcode).context(|| format!("opcode at byte {at}"))?;
    }
    match (machine.stack.as_slice(), machine.reader.left()) {
        (&[root], 0) if machine.marks.is_empty() => Ok((machine.heap, root)),
        (_, 0) => Err(Error::corrupt("pickle ends with something left on its stack, or with nothing")),
        (_, left) => Err(Error::corrupt(format!("file goes on after the pickle bytes=`{left}`"))),
    }
}

impl Machine {
    fn step(&mut self, opcode: u8) -> Result<()> {
        if let Some(number) = self.number(opcode)? {
            return self.push(number);
        }
        if let Some(string) = self.string(opcode)? {
            return self.push(string);
        }
        match opcode {
            // PROTO
            0x80 => {
                let version = self.reader.u8()?;
                if version > MAX_PROTOCOL {
                    return Err(Error::unsupported(format!(
                        "unknown protocol of pickles protocol=`{version}`"
                    )));
                }
                Ok(())
            }
            // FRAME, which says how much to read at once. The rest of it is read as it comes.
            0x95 => {
                let len = self.reader.array().map(u64::from_le_bytes)?;
                if len > self.reader.left() as u64 {
                    return Err(Error::corrupt("pickle ends early"));
                }
                Ok(())
            }
            b'(' => {
                self.heap.budget.spend(size_of::<usize>())?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' if self.marks.last() == Some(&self.stack.len()) => self.pop_mark().map(drop),
            b'0' => self.pop().map(drop),
            b'1' => self.pop_mark().map(drop),
            b'2' => {
                let top = self.top()?;
                self.push(top)
            }
            b'p' | b'q' | b'r' | b'g' | b'h' | b'j' | 0x94 => self.remember(opcode),
            b']' | b'}' | b')' | b'l' | b'd' | b't' | 0x85..=0x87 | 0x8f | 0x91 => self.container(opcode),
            b'a' | b'e' | b's' | b'u' | 0x90 => self.extend(opcode),
            b'c' | b'i' | b'o' | b'R' | b'b' | 0x81 | 0x93 => self.function(opcode),
            _ => Err(refused(opcode)),
        }
    }

    fn push(&mut self, value: Value) -> Result<()> {
        self.heap.budget.spend(size_of::<Value>())?;
        self.stack.push(value);
        Ok(())
    }

    fn top(&self) -> Result<Value> {
        let floor = self.marks.last().copied().unwrap_or_default();
        let top = self.stack.get(floor..).and_then(|above| above.last());
        top.copied().ok_or_else(|| Error::corrupt("stack is empty"))
    }

    fn pop(&mut self) -> Result<Value> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// What lies above the last mark.
    fn pop_mark(&mut self) -> Result<Vec<Value>> {
        let height = self.marks.pop().filter(|height| *height <= self.stack.len());
        let height = height.ok_or_else(|| Error::corrupt("no mark on the stack"))?;
        // Not `split_off`, which could hand out the room of the whole stack again and again.
        Ok(self.stack.drain(height..).collect())
    }

    fn number(&mut self, opcode: u8) -> Result<Option<Value>> {
        let wrong = || Error::corrupt("number does not parse");
        let value = match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'I' => match &*self.reader.line()? {
                b"00" => Value::Bool(false),
                b"01" => Value::Bool(true),
                digits => self.heap.add_integer(text::decimal(digits).ok_or_else(wrong)?)?,
            },
            b'L' => {
                let integer = text::decimal(&self.reader.line()?).ok_or_else(wrong)?;
                self.heap.add_integer(integer)?
            }
            b'J' => Value::Int(i64::from(self.reader.array().map(i32::from_le_bytes)?)),
            b'K' => Value::Int(i64::from(self.reader.u8()?)),
            b'M' => Value::Int(i64::from(self.reader.array().map(u16::from_le_bytes)?)),
            0x8a => {
                let integer = text::little_endian(&self.reader.short()?);
                self.heap.add_integer(integer)?
            }
            0x8b => {
                let integer = text::little_endian(&self.reader.long()?);
                self.heap.add_integer(integer)?
            }
            b'F' => Value::Float(text::float(&self.reader.line()?).ok_or_else(wrong)?),
            b'G' => Value::Float(self.reader.array().map(f64::from_be_bytes)?),
            _ => return Ok(None),
        };
        Ok(Some(value))
    }

    fn string(&mut self, opcode: u8) -> Result<Option<Value>> {
        let wrong = || Error::corrupt("string does not parse");
        let (is_text, string) = match opcode {
            b'S' => {
                let bytes = text::unquoted(&self.reader.line()?).ok_or_else(wrong)?;
                self.heap.budget.spend(bytes.len())?;
                (false, bytes.into())
            }
            b'V' => {
                let string = text::raw_unicode(&self.reader.line()?).ok_or_else(wrong)?;
                self.heap.budget.spend(string.len())?;
                (true, string.into())
            }
            b'U' | b'C' => (false, self.reader.short()?),
            b'T' | b'B' => (false, self.reader.long()?),
            0x8e | 0x96 => (false, self.reader.huge()?),
            0x8c => (true, self.reader.short()?),
            b'X' => (true, self.reader.long()?),
            0x8d => (true, self.reader.huge()?),
            _ => return Ok(None),
        };
        let string = if is_text { self.heap.add_text(string) } else { self.heap.add(Object::Bytes(string)) };
        string.map(Some)
    }

    /// Puts the top of the stack into the memo, or a value of the memo onto the stack.
    fn remember(&mut self, opcode: u8) -> Result<()> {
        let number = match opcode {
            b'p' | b'g' => text::decimal(&self.reader.line()?).and_then(|number| u32::try_from(number).ok()),
            b'q' | b'h' => Some(u32::from(self.reader.u8()?)),
            b'r' | b'j' => Some(self.reader.u32()?),
            // MEMOIZE counts for itself.
            _ => u32::try_from(self.memo.len()).ok(),
        };
        let number = number.ok_or_else(|| Error::corrupt("number in the memo does not parse"))?;
        if matches!(opcode, b'g' | b'h' | b'j') {
            let value = self.memo.get(&number).copied();
            let value = value.ok_or_else(|| Error::corrupt(format!("not in the memo number=`{number}`")))?;
            return self.push(value);
        }
        let top = self.top()?;
        if self.memo.insert(number, top).is_none() {
            self.heap.budget.spend(MEMO_ENTRY)?;
        }
        Ok(())
    }

    /// Makes a list, tuple, dict or set. Its items were on the stack, and are counted already.
    fn container(&mut self, opcode: u8) -> Result<()> {
        let object = match opcode {
            b']' => Object::List(Vec::new()),
            b'}' => Object::Dict(Vec::new()),
            b')' => Object::Tuple(Vec::new()),
            0x8f => Object::Set(Vec::new()),
            b'l' => Object::List(self.pop_mark()?),
            b'd' => Object::Dict(pairs(&self.pop_mark()?)?),
            0x91 => Object::Set(self.pop_mark()?),
            // TUPLE1 to TUPLE3
            0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0x84..opcode {
                    items.push(self.pop()?);
                }
                items.reverse();
                Object::Tuple(items)
            }
            _ => Object::Tuple(self.pop_mark()?),
        };
        let value = self.heap.add(object)?;
        self.push(value)
    }

    /// Adds to the list, dict or set on the stack.
    fn extend(&mut self, opcode: u8) -> Result<()> {
        let more = match opcode {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_mark()?,
        };
        let target = self.top()?;
        match (opcode, self.heap.get_mut(target)) {
            (b'a' | b'e', Some(Object::List(items))) | (0x90, Some(Object::Set(items))) => {
                items.extend(more);
            }
            (b's' | b'u', Some(Object::Dict(entries))) => entries.extend(pairs(&more)?),
            _ => return Err(Error::corrupt("items are for no list, dict or set")),
        }
        Ok(())
    }

    /// Names a function, calls one, or fills what one made.
    fn function(&mut self, opcode: u8) -> Result<()> {
        let made = match opcode {
            b'c' => {
                let (module, name) = (self.reader.line()?, self.reader.line()?);
                Value::Global(Global::named(&module, &name)?)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let names = self.heap.string(module).zip(self.heap.string(name));
                let (module, name) = names.ok_or_else(|| Error::corrupt("function's name is no string"))?;
                Value::Global(Global::named(module, name)?)
            }
            b'i' => {
                let (module, name) = (self.reader.line()?, self.reader.line()?);
                let function = Value::Global(Global::named(&module, &name)?);
                let args = self.pop_mark()?;
                calls::call(&mut self.heap, function, &args)?
            }
            b'o' => {
                let items = self.pop_mark()?;
                let (function, args) =
                    items.split_first().ok_or_else(|| Error::corrupt("nothing to be called"))?;
                calls::call(&mut self.heap, *function, args)?
            }
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                return calls::build(&mut self.heap, target, state);
            }
            // REDUCE and NEWOBJ. No function has many arguments, and a long tuple is not copied again and again.
            _ => {
                let args = self.pop()?;
                let function = self.pop()?;
                let args = self.heap.tuple(args).filter(|args| args.len() <= calls::MAX_ARGS);
                let args = args.ok_or_else(|| Error::corrupt("arguments are no short tuple"))?.to_vec();
                calls::call(&mut self.heap, function, &args)?
            }
        };
        self.push(made)
    }
}

/// Keys and values in turn.
fn pairs(items: &[Value]) -> Result<Vec<(Value, Value)>> {
    let (pairs, rest) = items.as_chunks();
    if !rest.is_empty() {
        return Err(Error::corrupt("a key without a value"));
    }
    Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
}

fn refused(opcode: u8) -> Error {
    let what = match opcode {
        b'P' | b'Q' => "pickle refers to objects outside of it, as those of PyTorch do",
        0x82..=0x84 | 0x92 => "pickle wants a Python class that is not data, which is never run",
        0x97 | 0x98 => "pickle wants buffers that are not in its file",
        _ => return Error::corrupt(format!("is not a sound pickle opcode=`{opcode:#04x}`")),
    };
    Error::unsupported(format!("{what} opcode=`{opcode:#04x}`"))
}
