//! The call of `scale_blocks` in an epilogue function.

use super::call::{Argument, FunctionCall};
use super::scaling::{BlockScale, SWIZZLE, Scaling};
use super::{ACCUMULATOR, Binary, ExpressionGraph, Id, Node};

impl ExpressionGraph {
    /// Adds the scaled accumulator:
    /// `scale_blocks(accum, a, b, a_block, b_block, a_zero, b_zero, a_swizzle, b_swizzle)`.
    pub(super) fn parse_scale_blocks(&mut self, call: &mut FunctionCall<'_>) -> Result<Id, String> {
        let accumulator = call.value(&[ACCUMULATOR])?;
        if self.node(accumulator) != Node::Accumulator {
            return Err(format!(
                "the first argument of scale_blocks must be {ACCUMULATOR}; compute with its result"
            ));
        }
        if self.scaling.is_some() {
            return Err("scale_blocks is called twice; an epilogue may call it once".to_owned());
        }
        let scales = [call.optional(&["a"])?, call.optional(&["b"])?];
        let blocks = [block("a_block", 1, call)?, block("b_block", 0, call)?];
        let zeros = [call.optional(&["a_zero"])?, call.optional(&["b_zero"])?];
        let swizzles = [swizzle("a_swizzle", call)?, swizzle("b_swizzle", call)?];
        let factor = |at: usize| -> Result<Option<BlockScale>, String> {
            let name = ["a", "b"][at];
            let Some(scale) = scales[at] else {
                if blocks[at].is_some() || zeros[at].is_some() || swizzles[at] {
                    return Err(format!(
                        "scale_blocks has a block, zero points or a swizzle of {name}, but no \
                         scales; pass {name}="
                    ));
                }
                return Ok(None);
            };
            let Some([first, second]) = blocks[at] else {
                let example = ["(rows, depth along K)", "(depth along K, columns)"][at];
                return Err(format!(
                    "scale_blocks has scales {name}, but no block; pass {name}_block={example}"
                ));
            };
            let (extent, depth) = if at == 0 { (first, second) } else { (second, first) };
            let input = |parameter: &str, id: Id| match self.node(id) {
                Node::Input(index) => Ok(index),
                _ => Err(format!(
                    "{parameter} of scale_blocks must be a parameter of the epilogue function"
                )),
            };
            let scale = input(name, scale)?;
            let zero = zeros[at].map(|zero| input(&format!("{name}_zero"), zero)).transpose()?;
            let is_swizzled = swizzles[at];
            if is_swizzled && zero.is_some() {
                return Err(format!("scales {name} with zero points cannot be swizzled"));
            }
            Ok(Some(BlockScale { scale, zero, extent, depth, is_swizzled }))
        };
        let scaling = Scaling { a: factor(0)?, b: factor(1)?, is_of_operands: false };
        if scaling.factors().next().is_none() {
            return Err("scale_blocks has no scales; pass a=, b= or both".to_owned());
        }
        let mut inputs: Vec<usize> = scaling.inputs().collect();
        inputs.sort_unstable();
        if let Some(twice) = inputs.windows(2).find(|pair| pair[0] == pair[1]) {
            let name = &self.inputs[twice[0]];
            return Err(format!("scale_blocks takes {name} twice; pass separate parameters"));
        }
        self.scaling = Some(scaling);
        Ok(self.add(Node::ScaledAccumulator))
    }

    /// The graph with the accumulator of scaled operands, times the inputs `factors`, in place of
    /// the accumulator. `parameters`: the names of the scales, zero points and factors, the last
    /// inputs. `None` if the function scales blocks itself.
    pub fn with_scaled_operands(
        &self,
        scaling: Scaling,
        parameters: &[&'static str],
        factors: &[u32],
    ) -> Option<ExpressionGraph> {
        if self.scaling.is_some() {
            return None;
        }
        let (nodes, scaling) = (Vec::new(), Some(scaling));
        let mut graph = ExpressionGraph { nodes, scaling, ..self.clone() };
        let mut accumulator = graph.add(Node::ScaledAccumulator);
        for factor in factors {
            let factor = graph.add(Node::Input(*factor));
            accumulator = graph.add(Node::Binary(Binary::Multiply, accumulator, factor));
        }
        // Of each node of the function: its place in the new graph.
        let mut places: Vec<Id> = Vec::new();
        for node in &self.nodes {
            places.push(match node {
                Node::Accumulator => accumulator,
                node => graph.add(node.map(|id| places[id as usize])),
            });
        }
        for output in &mut graph.outputs {
            output.node = places[output.node as usize];
        }
        graph.inputs.extend(parameters.iter().map(|&name| name.to_owned()));
        Some(graph)
    }

    /// Whether the graph applies scales of operands and nothing else.
    pub fn only_scales_operands(&self) -> bool {
        self.scaling.is_some_and(|scaling| scaling.is_of_operands)
            && self.nodes == [Node::ScaledAccumulator]
            && self.outputs.len() == 1
    }

    /// Checks a finished graph: with block scales, an output depends neither on the plain
    /// accumulator nor on a single scale.
    pub fn check_scaling(&self) -> Result<(), String> {
        let Some(scaling) = &self.scaling else { return Ok(()) };
        for (node, _) in self.nodes.iter().zip(self.used()).filter(|(_, used)| *used) {
            match *node {
                Node::Accumulator => {
                    return Err(format!(
                        "an epilogue that calls scale_blocks cannot use {ACCUMULATOR} elsewhere; \
                         use the result of the call"
                    ));
                }
                Node::Input(index) if scaling.factor_of(index as usize).is_some() => {
                    return Err(format!(
                        "{} holds scales or zero points of scale_blocks and cannot be used \
                         elsewhere",
                        self.inputs[index as usize]
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The two extents of a block, in the order of the factor's dimensions. The one at `along_k` may be
/// -1: all of K.
fn block(
    name: &str,
    along_k: usize,
    call: &mut FunctionCall<'_>,
) -> Result<Option<[u32; 2]>, String> {
    let extents = match call.take(&[name]) {
        None | Some(Argument::Nothing) => return Ok(None),
        Some(Argument::Integers(extents)) => extents,
        Some(_) => return Err(format!("{name} of scale_blocks must be a tuple of two integers")),
    };
    let extent = |at: usize| match extents[at] {
        extent @ 1..=Scaling::MAX_BLOCK => Some(extent as u32),
        -1 if at == along_k => Some(BlockScale::WHOLE),
        _ => None,
    };
    match extents.len() {
        2 => extent(0).zip(extent(1)).map(|(first, second)| [first, second]),
        _ => None,
    }
    .map(Some)
    .ok_or_else(|| {
        format!(
            "{name} of scale_blocks is {extents:?}; pass two extents from 1 to {}, or -1 for all \
             of K",
            Scaling::MAX_BLOCK
        )
    })
}

fn swizzle(name: &str, call: &mut FunctionCall<'_>) -> Result<bool, String> {
    match call.word(&[name])?.as_deref() {
        None => Ok(false),
        Some(SWIZZLE) => Ok(true),
        Some(other) => {
            Err(format!("{name} of scale_blocks is {other:?}; pass {SWIZZLE:?} or None"))
        }
    }
}
