//! A user's own CUDA C++ source.

use super::cache;
use super::scan::{kernels_in, last_word, split_at_commas, strip_comments};
use super::signature;

/// CUDA C++ source and the name of the function to launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UserSource {
    pub text: String,
    /// The file and line at which the text starts, for the compiler's messages.
    pub file: String,
    pub line: usize,
    /// The function as a C++ expression: `square`, `mine::square`, `square<float, 4>`.
    pub function: String,
    /// Additional options for NVRTC.
    pub options: Vec<String>,
    /// Dynamic shared memory of a launch, in bytes.
    pub shared_bytes: u32,
}

impl UserSource {
    /// The parameter names found in the text, for messages only. The compiler's signature
    /// determines the parameters.
    pub fn parameter_names(&self) -> Vec<String> {
        let base = self.function.split('<').next().unwrap_or_default();
        let base = base.rsplit("::").next().unwrap_or_default().trim();
        let text = strip_comments(&self.text, true);
        // The last match: an earlier declaration may omit the names.
        let found = kernels_in(&text).into_iter().rfind(|(name, _)| *name == base);
        let parameters = found.map(|(_, parameters)| parameters).unwrap_or_default();
        split_at_commas(parameters)
            .into_iter()
            .map(|parameter| last_word(parameter).to_owned())
            .collect()
    }

    /// A hash of the text, the headers of this package, the function's name and the options: which
    /// program results of the tuner belong to.
    pub fn fingerprint(&self) -> String {
        let options = [self.options.as_slice(), std::slice::from_ref(&self.function)].concat();
        cache::key(&self.text, &options, (0, 0))
    }

    /// The program text that NVRTC compiles.
    pub(super) fn program(&self) -> String {
        let file = self.file.replace('\\', "\\\\").replace('"', "\\\"");
        format!("#line {} \"{file}\"\n{}{}", self.line, self.text, signature::TEMPLATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_names_are_found() {
        let source = UserSource {
            text: crate::compile::scan::tests::KERNELS.to_owned(),
            file: "a.cu".to_owned(),
            line: 1,
            function: "scale<float>".to_owned(),
            options: Vec::new(),
            shared_bytes: 0,
        };
        assert_eq!(source.parameter_names(), ["x", "out", "n"]);
        let named = |text: &str| {
            UserSource { text: text.to_owned(), function: "f".to_owned(), ..source.clone() }
                .parameter_names()
        };
        let commented = "__global__ void f(float*);  // f(int old)\n/* __global__ void f(int old) \
                         {} */\n__global__ void f(float* x /* in, row-major */, // the first\n \
                         char c = ')', int n)";
        assert_eq!(named(commented), ["x", "c", "n"]);
    }
}
