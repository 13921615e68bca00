//! The network, and Adam with its moments in the open.
//!
//! Weights and moments are lists in the order of [`parameters`]. candle's own optimiser hides its moments, and a job that goes
//! on without them is another job.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::loss::cross_entropy;

use crate::data::{CLASSES, PIXELS};
use crate::random::Random;

/// The widths of the layers: the image, two hidden ones, the digits.
const WIDTHS: [usize; 4] = [PIXELS, 256, 128, CLASSES];

/// The name and the shape of one tensor of weights.
pub struct Parameter {
    pub name: String,
    pub shape: Vec<usize>,
}

/// All parameters, a weight and a bias per layer.
pub fn parameters() -> Vec<Parameter> {
    let layers = WIDTHS.iter().zip(WIDTHS.iter().skip(1)).enumerate();
    let tensors = layers.flat_map(|(index, (&inputs, &outputs))| {
        let layer = index + 1;
        [(format!("fc{layer}/weight"), vec![outputs, inputs]), (format!("fc{layer}/bias"), vec![outputs])]
    });
    tensors.map(|(name, shape)| Parameter { name, shape }).collect()
}

/// New weights: uniform as He et al. scale them for ReLU, biases zero.
pub fn new_weights(random: &mut Random) -> Result<Vec<Var>> {
    let new = |parameter: &Parameter| {
        let values: Vec<f32> = match *parameter.shape.as_slice() {
            [outputs, inputs] => {
                let limit = (6.0 / inputs as f32).sqrt();
                (0..outputs * inputs).map(|_| random.within(limit)).collect()
            }
            _ => vec![0.0; parameter.shape.iter().product()],
        };
        Var::from_vec(values, parameter.shape.as_slice(), &Device::Cpu)
    };
    parameters().iter().map(new).collect()
}

/// The scores `[images, digits]` that the network gives to images.
fn forward<'a>(weights: impl IntoIterator<Item = &'a Tensor>, images: &Tensor) -> Result<Tensor> {
    let mut weights = weights.into_iter();
    let mut at: Option<Tensor> = None;
    while let Some((weight, bias)) = weights.next().zip(weights.next()) {
        let input = match at {
            Some(hidden) => hidden.relu()?,
            None => images.clone(),
        };
        at = Some(input.matmul(&weight.t()?)?.broadcast_add(bias)?);
    }
    at.ok_or_else(|| candle_core::Error::msg("a network needs weights"))
}

/// The share of images that the network takes for what they are.
pub fn accuracy<'a>(
    weights: impl IntoIterator<Item = &'a Tensor>,
    (images, labels): &(Tensor, Tensor),
) -> Result<f32> {
    let found = forward(weights, images)?.argmax(1)?;
    found.eq(labels)?.to_dtype(DType::F32)?.mean_all()?.to_scalar()
}

/// Adam by D. Kingma and J. Ba.
pub struct Adam {
    /// How many updates were made.
    pub step: u64,
    /// The running means of the gradients.
    pub means: Vec<Tensor>,
    /// The running means of their squares.
    pub squares: Vec<Tensor>,
}

impl Adam {
    const RATE: f64 = 1e-3;
    const BETA: (f64, f64) = (0.9, 0.999);
    const EPSILON: f64 = 1e-8;

    pub fn new() -> Result<Self> {
        let zeros = |parameter: Parameter| Tensor::zeros(parameter.shape, DType::F32, &Device::Cpu);
        let means = parameters().into_iter().map(zeros).collect::<Result<Vec<_>>>()?;
        Ok(Self { step: 0, squares: means.clone(), means })
    }

    /// Learns from one batch and returns its loss.
    pub fn learn(&mut self, weights: &[Var], (images, labels): &(Tensor, Tensor)) -> Result<f32> {
        let loss = cross_entropy(&forward(weights.iter().map(Var::as_tensor), images)?, labels)?;
        let gradients = loss.backward()?;
        self.step += 1;
        let correction = |beta: f64| 1.0 / (1.0 - beta.powf(self.step as f64));
        let corrections = (correction(Self::BETA.0), correction(Self::BETA.1));
        let moments = self.means.iter_mut().zip(&mut self.squares);
        for (weight, (mean, square)) in weights.iter().zip(moments) {
            let Some(gradient) = gradients.get(weight) else { continue };
            *mean = ((&*mean * Self::BETA.0)? + (gradient * (1.0 - Self::BETA.0))?)?.detach();
            *square = ((&*square * Self::BETA.1)? + (gradient.sqr()? * (1.0 - Self::BETA.1))?)?.detach();
            let scale = ((&*square * corrections.1)?.sqrt()? + Self::EPSILON)?;
            let change = ((&*mean * (corrections.0 * Self::RATE))? / scale)?;
            weight.set(&(weight.as_tensor() - change)?.detach())?;
        }
        loss.to_scalar()
    }
}
