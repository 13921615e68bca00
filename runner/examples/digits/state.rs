//! All that one trainer must remember, as blobs. What is not here is lost when the process dies.

use candle_core::{Device, Var};
use ckpt_engine::blob::{Blob, Element, Tensor, Workspace};
use ckpt_engine::{Error, Result};

use crate::model::{Adam, Parameter, new_weights, parameters};
use crate::random::Random;

/// Where every trainer's weights start from. All start from the same.
const SEED: u64 = 2024;

/// The state of one trainer.
pub struct State {
    pub weights: Vec<Var>,
    pub adam: Adam,
    pub reader: Reader,
}

/// Deals out a trainer's images in random order, each once before any comes again.
pub struct Reader {
    random: Random,
    order: Vec<u32>,
    /// How many of `order` were dealt.
    position: u64,
}

impl Reader {
    fn new(seed: u64, images: usize) -> Self {
        let mut random = Random::new(seed);
        let mut order: Vec<u32> = (0..images as u32).collect();
        random.shuffle(&mut order);
        Self { random, order, position: 0 }
    }

    /// The numbers of the next images. An epoch need not end where the images do; the next one goes on from there.
    pub fn next(&mut self, count: usize) -> Vec<u32> {
        let deal = |_| {
            if self.position >= self.order.len() as u64 {
                self.random.shuffle(&mut self.order);
                self.position = 0;
            }
            let dealt = self.order.get(self.position as usize).copied();
            self.position += 1;
            dealt
        };
        (0..count).filter_map(deal).collect()
    }
}

/// The names of a parameter's blobs: the weights, and Adam's moments of them.
fn names(parameter: &Parameter) -> [String; 3] {
    let name = &parameter.name;
    [name.clone(), format!("adam/mean/{name}"), format!("adam/square/{name}")]
}

impl State {
    /// The state of trainer `index`, which has `images` images, before the first epoch.
    pub fn new(index: usize, images: usize) -> Result<Self> {
        Ok(Self {
            weights: new_weights(&mut Random::new(SEED)).map_err(math)?,
            adam: Adam::new().map_err(math)?,
            reader: Reader::new(SEED + 1 + index as u64, images),
        })
    }

    /// The state that these blobs hold.
    pub fn from_blobs(blobs: &Workspace) -> Result<Self> {
        let mut state = Self {
            weights: Vec::new(),
            adam: Adam { step: one(blobs, "adam/step")?, means: Vec::new(), squares: Vec::new() },
            reader: Reader {
                random: Random(array(blobs, "random/state")?),
                order: blobs.tensor("reader/order")?.as_slice()?.to_vec(),
                position: one(blobs, "reader/position")?,
            },
        };
        for parameter in parameters() {
            let [weight, mean, square] = names(&parameter);
            let weight = to_candle(blobs, &weight)?;
            state.weights.push(Var::from_tensor(&weight).map_err(math)?);
            state.adam.means.push(to_candle(blobs, &mean)?);
            state.adam.squares.push(to_candle(blobs, &square)?);
        }
        Ok(state)
    }

    /// This state as blobs.
    pub fn to_blobs(&self) -> Result<Workspace> {
        let mut blobs: Workspace = self.shared_blobs()?.into_iter().collect();
        let Reader { random, order, position } = &self.reader;
        blobs.insert("adam/step", Tensor::scalar(self.adam.step));
        blobs.insert("random/state", Tensor::from_slice([4], &random.0)?);
        blobs.insert("reader/order", Tensor::from_slice([order.len() as u64], order)?);
        blobs.insert("reader/position", Tensor::scalar(*position));
        Ok(blobs)
    }

    /// The blobs that the trainers average: weights and moments.
    pub fn shared_blobs(&self) -> Result<Vec<(String, Blob)>> {
        let weights = self.weights.iter().map(Var::as_tensor);
        let moments = self.adam.means.iter().zip(&self.adam.squares);
        let mut blobs = Vec::new();
        for ((weight, (mean, square)), parameter) in weights.zip(moments).zip(parameters()) {
            for (name, tensor) in names(&parameter).into_iter().zip([weight, mean, square]) {
                blobs.push((name, Tensor::from_candle(tensor)?.into()));
            }
        }
        Ok(blobs)
    }
}

/// The weights among these blobs, in the order of [`parameters`].
pub fn weights(blobs: &Workspace) -> Result<Vec<candle_core::Tensor>> {
    parameters().iter().map(|parameter| to_candle(blobs, &parameter.name)).collect()
}

fn to_candle(blobs: &Workspace, name: &str) -> Result<candle_core::Tensor> {
    blobs.tensor(name)?.to_candle(&Device::Cpu)
}

fn array<T: Element, const N: usize>(blobs: &Workspace, name: &str) -> Result<[T; N]> {
    let values = blobs.tensor(name)?.as_slice::<T>()?;
    values
        .try_into()
        .map_err(|_| Error::invalid(format!("blob has another length wanted=`{N}` blob=`{name}`")))
}

fn one<T: Element>(blobs: &Workspace, name: &str) -> Result<T> {
    let [value] = array(blobs, name)?;
    Ok(value)
}

/// An error of candle as one of ours.
pub fn math(error: candle_core::Error) -> Error {
    Error::internal("a tensor operation failed").with_source(error)
}
