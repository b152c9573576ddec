//! The Rust files of the workspace.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) struct SourceFile {
    /// Name of the crate's folder.
    pub(crate) krate: String,
    /// Path inside the workspace.
    pub(crate) path: String,
    /// Path inside the crate's folder `src`, if the file is below it.
    pub(crate) inside: Option<PathBuf>,
    /// The file belongs to the product: it is below `src`, and no test.
    pub(crate) is_product: bool,
    pub(crate) text: String,
    pub(crate) syntax: syn::File,
}

/// Files that are compiled for tests only, by their names.
const TEST_FILES: [&str; 4] = ["tests.rs", "naive.rs", "interleavings.rs", "fixture.rs"];

/// Reads all Rust files below the folder `crates`, in the order of their paths.
pub(crate) fn sources(root: &Path) -> Result<Vec<SourceFile>> {
    let mut sources = Vec::new();
    for krate in entries(&root.join("crates"))? {
        let mut files = Vec::new();
        rust_files(&krate, &mut files)?;
        for file in files {
            sources.push(source(root, &krate, &file)?);
        }
    }
    Ok(sources)
}

fn source(root: &Path, krate: &Path, file: &Path) -> Result<SourceFile> {
    let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let syntax = syn::parse_file(&text).with_context(|| format!("{}", file.display()))?;
    let inside = file.strip_prefix(krate.join("src")).ok().map(Path::to_owned);
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_test = TEST_FILES.contains(&name)
        || inside.iter().flat_map(|path| path.iter()).any(|part| part == "tests");
    Ok(SourceFile {
        krate: krate.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        path: file.strip_prefix(root).unwrap_or(file).display().to_string(),
        is_product: inside.is_some() && !is_test,
        inside,
        text,
        syntax,
    })
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in entries(folder)? {
        if entry.is_dir() {
            rust_files(&entry, files)?;
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}
