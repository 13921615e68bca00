//! The handwritten digits, and who gets which.

use std::io::Read;

use candle_core::{Device, Tensor};
use ckpt_engine::{Error, Result};
use flate2::read::GzDecoder;

/// The pixels of an image.
pub const PIXELS: usize = 64;
/// The different digits.
pub const CLASSES: usize = 10;
/// Every fifth image is held out: the network never learns from it.
const HELD_OUT: usize = 5;

/// Images with their labels.
#[derive(Default)]
pub struct Digits(Vec<Digit>);

#[derive(Clone)]
struct Digit {
    /// From 0 (white) to 1 (black), row by row.
    pixels: [f32; PIXELS],
    label: u32,
}

impl Digits {
    /// Unpacks all images and returns those to learn from and those held out.
    pub fn load() -> Result<(Self, Self)> {
        let mut text = String::new();
        GzDecoder::new(&include_bytes!("digits.csv.gz")[..])
            .read_to_string(&mut text)
            .map_err(|error| Error::io("cannot unpack the digits", error))?;
        let (mut train, mut held_out) = (Self::default(), Self::default());
        for (index, line) in text.lines().enumerate() {
            let digit = parse(line).ok_or_else(|| {
                Error::corrupt(format!("not a digit of 64 pixels and a label line=`{line}`"))
            })?;
            let part = if index % HELD_OUT == HELD_OUT - 1 { &mut held_out } else { &mut train };
            part.0.push(digit);
        }
        Ok((train, held_out))
    }

    /// The share of node `index` of `nodes`: every `nodes`-th image.
    pub fn share(&self, index: usize, nodes: usize) -> Self {
        Self(self.0.iter().skip(index).step_by(nodes).cloned().collect())
    }

    /// How many images.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The images numbered `rows` as a tensor `[rows, pixels]`, and their labels.
    pub fn batch(&self, rows: impl IntoIterator<Item = u32>) -> candle_core::Result<(Tensor, Tensor)> {
        let digits: Vec<_> = rows.into_iter().filter_map(|row| self.0.get(row as usize)).collect();
        let pixels: Vec<f32> = digits.iter().flat_map(|digit| digit.pixels).collect();
        let labels: Vec<u32> = digits.iter().map(|digit| digit.label).collect();
        let images = Tensor::from_vec(pixels, (digits.len(), PIXELS), &Device::Cpu)?;
        Ok((images, Tensor::from_vec(labels, digits.len(), &Device::Cpu)?))
    }

    /// All images and their labels.
    pub fn all(&self) -> candle_core::Result<(Tensor, Tensor)> {
        self.batch(0..self.len() as u32)
    }
}

fn parse(line: &str) -> Option<Digit> {
    let mut values = line.split(',').map(|value| value.parse::<u8>().ok());
    let mut pixels = [0.0; PIXELS];
    for pixel in &mut pixels {
        *pixel = f32::from(values.next()??) / 16.0;
    }
    let label = u32::from(values.next()??);
    let is_whole = values.next().is_none() && label < CLASSES as u32;
    is_whole.then_some(Digit { pixels, label })
}
