//! The graph of job types at run time, for documentation, dashboards and diagrams.

use std::fmt;

/// The job types of one enum and how they follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Graph {
    /// The name of the enum.
    pub name: &'static str,
    /// The job types, in the order of the variants.
    pub types: Vec<GraphType>,
}

/// One job type of a [`Graph`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphType {
    /// The stable name.
    pub name: &'static str,
    /// Whether chains may start with it.
    pub entry: bool,
    /// The names of the job types that it may continue with.
    pub continues: Vec<&'static str>,
    /// The type with which it finishes its chain, as written in the source; `None` if it cannot finish one.
    pub output: Option<&'static str>,
    /// The blockers that it waits for.
    pub blockers: GraphBlockers,
}

/// The blockers of a job type: the names of the entry types of the chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraphBlockers {
    /// No blockers.
    None,
    /// Exactly these chains, in this order.
    Each(Vec<&'static str>),
    /// Any number of chains of this entry type.
    Any(&'static str),
}

impl Graph {
    /// A graph, for hand-written implementations of [`JobTypes`](crate::JobTypes).
    pub fn new(name: &'static str, types: Vec<GraphType>) -> Self {
        Self { name, types }
    }

    /// The type with this name.
    pub fn get(&self, name: &str) -> Option<&GraphType> {
        self.types.iter().find(|job_type| job_type.name == name)
    }

    /// The types that chains may start with.
    pub fn entries(&self) -> impl Iterator<Item = &GraphType> {
        self.types.iter().filter(|job_type| job_type.entry)
    }

    /// The types that finish their chain.
    pub fn ends(&self) -> impl Iterator<Item = &GraphType> {
        self.types.iter().filter(|job_type| job_type.output.is_some())
    }

    /// Every continuation, as (from, to).
    pub fn edges(&self) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
        self.types
            .iter()
            .flat_map(|from| from.continues.iter().map(move |to| (from.name, *to)))
    }

    /// The graph as a Mermaid flow chart: solid arrows continue, dotted ones unblock, stadiums are entries.
    ///
    /// ```
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Fetch;
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Store;
    /// #[derive(queuert::JobTypes)]
    /// enum Import {
    ///     #[job(entry, continues = [Store])]
    ///     Fetch(Fetch),
    ///     #[job(output = u32)]
    ///     Store(Store),
    /// }
    ///
    /// # use queuert::JobTypes as _;
    /// let diagram = Import::graph().mermaid();
    /// assert!(diagram.contains("fetch --> store"));
    /// ```
    pub fn mermaid(&self) -> String {
        self.to_string()
    }
}

impl GraphType {
    /// A job type, for hand-written implementations of [`JobTypes`](crate::JobTypes).
    pub fn new(
        name: &'static str,
        entry: bool,
        continues: Vec<&'static str>,
        output: Option<&'static str>,
        blockers: GraphBlockers,
    ) -> Self {
        Self {
            name,
            entry,
            continues,
            output,
            blockers,
        }
    }
}

impl GraphBlockers {
    /// The names, each once per place.
    pub fn names(&self) -> &[&'static str] {
        match self {
            Self::None => &[],
            Self::Each(names) => names,
            Self::Any(name) => std::slice::from_ref(name),
        }
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "flowchart TD")?;
        for job_type in &self.types {
            let name = job_type.name;
            let node = Node(name);
            if job_type.entry {
                writeln!(f, "    {node}([\"{name}\"])")?;
            } else {
                writeln!(f, "    {node}[\"{name}\"]")?;
            }
            if let Some(output) = job_type.output {
                writeln!(f, "    {node} ==> {node}_output[/\"{}\"/]", Escaped(output))?;
            }
            for next in &job_type.continues {
                writeln!(f, "    {node} --> {}", Node(next))?;
            }
            let label = match job_type.blockers {
                GraphBlockers::Any(_) => "unblocks (any number)",
                _ => "unblocks",
            };
            for blocker in job_type.blockers.names() {
                if self.get(blocker).is_none() {
                    writeln!(f, "    {}([\"{blocker}\"])", Node(blocker))?;
                }
                writeln!(f, "    {} -. {label} .-> {node}", Node(blocker))?;
            }
        }
        Ok(())
    }
}

/// A Mermaid node id: characters with a meaning of their own are replaced, and `end` is a keyword.
struct Node<'a>(&'a str);

impl fmt::Display for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            let plain = character.is_ascii_alphanumeric() || character == '_' || character == '-';
            write!(f, "{}", if plain { character } else { '_' })?;
        }
        if self.0 == "end" { f.write_str("_") } else { Ok(()) }
    }
}

/// Text inside quotes; Mermaid knows no escape but entities.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '"' => f.write_str("#quot;")?,
                '<' => f.write_str("#lt;")?,
                '>' => f.write_str("#gt;")?,
                other => write!(f, "{other}")?,
            }
        }
        Ok(())
    }
}
