//! A user's own CUDA C++ source.

use super::scan::{kernels_in, last_word, split_at_commas, strip_comments};
use super::signature;

/// CUDA C++ of the user's own, and the function in it that is launched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UserSource {
    pub text: String,
    /// Where the text is from: a file, and the line of it that the text begins on. Messages of the compiler say so.
    pub file: String,
    pub line: usize,
    /// The function in the words of C++: `square`, `mine::square`, `square<float, 4>`.
    pub function: String,
    /// Further options of NVRTC.
    pub options: Vec<String>,
    /// Dynamic shared memory of a launch.
    pub shared_bytes: u32,
}

impl UserSource {
    /// The names of the function's parameters, as far as the text shows them. They are for messages; what decides is the
    /// signature that the compiler tells.
    pub fn parameter_names(&self) -> Vec<String> {
        let base = self.function.split('<').next().unwrap_or_default();
        let base = base.rsplit("::").next().unwrap_or_default().trim();
        let text = strip_comments(&self.text, true);
        // The last one: a declaration in front may leave the names out.
        let found = kernels_in(&text).into_iter().rfind(|(name, _)| *name == base);
        let parameters = found.map(|(_, parameters)| parameters).unwrap_or_default();
        split_at_commas(parameters)
            .into_iter()
            .map(|parameter| last_word(parameter).to_owned())
            .collect()
    }

    /// The program as NVRTC gets it.
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
        let text = "template <class T> __global__ void __launch_bounds__(256, 2) scale(const T* __restrict__ x,\n  T *out, \
                    const int n = 3) { f(x); }\nextern \"C\" __global__ void empty() {}";
        let source = UserSource {
            text: text.to_owned(),
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
        let commented = "__global__ void f(float*);  // f(int old)\n/* __global__ void f(int old) {} */\n\
                         __global__ void f(float* x /* in, row-major */, // the first\n char c = ')', int n)";
        assert_eq!(named(commented), ["x", "c", "n"]);
    }
}
