//! The store of results: a SQLite file in the cache directory, and what this process has read of
//! it.
//!
//! SQLite's locks and journal make the file safe under concurrent processes and crashes. A file
//! that is damaged, not ours, or of a later version is set aside under another name. Without a
//! writable file, results live in memory.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::compile::{create_directory, directory};
use crate::driver::Device;

/// The time of one kernel for one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    pub device: String,
    /// The driver's major version, as CUDA counts: 13.
    pub driver: i32,
    pub key: String,
    /// The kernel's name, without an epilogue.
    pub kernel: String,
    /// The fingerprint of the kernel's program.
    pub program: String,
    pub seconds: f64,
}

#[derive(Debug, Error)]
pub enum StoreError {
    #[error("the store of tuning results cannot be read or written: {0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("the store of tuning results cannot be read or written: {0}")]
    File(#[from] std::io::Error),
}

/// SQLite's `application_id` of our files, "RUTL", and the version of our tables.
const APPLICATION: i32 = 0x5255_544c;
const VERSION: i32 = 1;
/// How long a process waits for another one that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known of one problem on one device.
#[derive(Default)]
struct Known {
    /// Fastest first.
    measurements: Vec<Measurement>,
    /// Positions of their kernels, once a ranking has looked them up.
    positions: Option<Vec<usize>>,
}

/// The results on one kind of device.
struct OfDevice {
    device: String,
    driver: i32,
    by_key: FxHashMap<String, Known>,
}

/// What this process knows: the content of the file when the store was first used, and what the
/// process has added since.
pub struct Store {
    /// None if results are kept in memory alone.
    path: Option<PathBuf>,
    devices: Vec<OfDevice>,
    warnings: Vec<String>,
}

impl Store {
    /// The store of this process. The first call reads the file.
    pub fn get() -> MutexGuard<'static, Store> {
        static STORE: LazyLock<Mutex<Store>> = LazyLock::new(|| {
            let path = directory().map(|folder| folder.join("tuning.sqlite3"));
            let mut store = Store { path, devices: Vec::new(), warnings: Vec::new() };
            store.read();
            Mutex::new(store)
        });
        STORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn warns(&self) -> bool {
        !self.warnings.is_empty()
    }

    /// Warnings since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Whether there is a result for a device. Otherwise, no key needs to be made.
    pub fn knows(&self, device: &Device) -> bool {
        self.of(device).is_some()
    }

    fn of(&self, device: &Device) -> Option<usize> {
        self.place(&device.name, driver_of(device))
    }

    fn place(&self, device: &str, driver: i32) -> Option<usize> {
        self.devices.iter().position(|of| of.driver == driver && of.device == device)
    }

    /// Positions of the kernels that are measured for a key, fastest first; `None` if none is.
    /// `look_up` finds the positions of measurements, and returns whether to remember them.
    pub fn positions(
        &mut self,
        device: &Device,
        key: &str,
        look_up: impl FnOnce(&[Measurement]) -> (Vec<usize>, bool),
    ) -> Option<Cow<'_, [usize]>> {
        let at = self.of(device)?;
        let known = self.devices[at].by_key.get_mut(key)?;
        if known.positions.is_none() {
            let (found, remember) = look_up(&known.measurements);
            if !remember {
                return Some(Cow::Owned(found));
            }
            known.positions = Some(found);
        }
        known.positions.as_deref().map(Cow::Borrowed)
    }

    /// All measurements, of all devices.
    pub fn all(&self) -> Vec<Measurement> {
        let of_device = |of: &OfDevice| {
            let mut keys: Vec<_> = of.by_key.iter().collect();
            keys.sort_by_key(|(key, _)| *key);
            keys.into_iter().flat_map(|(_, known)| known.measurements.clone()).collect::<Vec<_>>()
        };
        self.devices.iter().flat_map(of_device).collect()
    }

    /// Adds measurements. Those of a kernel that the key has replace the earlier ones; `replaces`:
    /// all earlier ones of their keys. Results that cannot be written stay in memory, with a
    /// warning. `persists`: whether to write them.
    pub fn add(&mut self, new: &[Measurement], replaces: bool, persists: bool) {
        let write = |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            for Measurement { device, driver, key, .. } in new.iter().filter(|_| replaces) {
                let of_key = "DELETE FROM results WHERE device = ? AND driver = ? AND key = ?";
                transaction.execute(of_key, params![device, driver, key])?;
            }
            for Measurement { device, driver, key, kernel, program, seconds } in new {
                let insert = "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?)";
                let row = params![device, driver, key, kernel, program, seconds];
                transaction.execute(insert, row)?;
            }
            transaction.commit()
        };
        if persists {
            let written = self.with_connection(write);
            self.fall_back_to_memory(written);
        }
        for Measurement { device, driver, key, .. } in new.iter().filter(|_| replaces) {
            if let Some(at) = self.place(device, *driver) {
                self.devices[at].by_key.remove(key);
            }
        }
        new.iter().for_each(|measurement| self.remember(measurement.clone()));
    }

    /// Removes all results, of all devices.
    pub fn clear(&mut self) {
        let delete = |connection: &mut Connection| connection.execute("DELETE FROM results", ());
        let cleared = self.with_connection(delete);
        self.fall_back_to_memory(cleared.map(drop));
        self.devices.clear();
    }

    fn remember(&mut self, new: Measurement) {
        let at = self.place(&new.device, new.driver).unwrap_or_else(|| {
            let (device, driver) = (new.device.clone(), new.driver);
            self.devices.push(OfDevice { device, driver, by_key: FxHashMap::default() });
            self.devices.len() - 1
        });
        let known = self.devices[at].by_key.entry(new.key.clone()).or_default();
        known.positions = None;
        known.measurements.retain(|measurement| measurement.kernel != new.kernel);
        known.measurements.push(new);
        known.measurements.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
    }

    fn read(&mut self) {
        if !self.path.as_ref().is_some_and(|path| path.exists()) {
            return;
        }
        let read = self.with_connection(|connection| {
            let mut select = connection
                .prepare("SELECT device, driver, key, kernel, program, seconds FROM results")?;
            let rows = select.query_map((), |row| {
                Ok(Measurement {
                    device: row.get(0)?,
                    driver: row.get(1)?,
                    key: row.get(2)?,
                    kernel: row.get(3)?,
                    program: row.get(4)?,
                    seconds: row.get(5)?,
                })
            })?;
            rows.collect::<Result<Vec<_>, _>>()
        });
        match read {
            Ok(rows) => rows.into_iter().for_each(|row| self.remember(row)),
            Err(error) => self.fall_back_to_memory(Err(error)),
        }
    }

    /// Warns of an error, once, after which results stay in memory.
    fn fall_back_to_memory(&mut self, result: Result<(), StoreError>) {
        if let Err(error) = result
            && self.path.take().is_some()
        {
            self.warnings.push(format!("{error}; results of this process stay in memory"));
        }
    }

    /// Works on the file, which is made if it is missing. A file that is damaged, not ours, or of a
    /// later version is set aside, and the work begins anew on an empty one.
    fn with_connection<T: Default>(
        &mut self,
        work: impl Fn(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let Some(path) = self.path.clone() else { return Ok(T::default()) };
        if let Some(folder) = path.parent() {
            create_directory(folder)?;
        }
        // Another process may have begun a file, or set one aside, since: look twice.
        let mut reason = String::new();
        for _ in 0..2 {
            let result = open(&path).and_then(|opened| match opened {
                Ok(mut connection) => work(&mut connection).map(Ok),
                Err(foreign) => Ok(Err(foreign)),
            });
            reason = match result {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(foreign)) => foreign,
                Err(error) if is_damage(&error) => error.to_string(),
                Err(error) => return Err(error.into()),
            };
        }
        let aside = set_aside(&path)?;
        self.warnings.push(format!(
            "the store of tuning results {} was set aside as {} ({reason}); a new one is begun",
            path.display(),
            aside.display()
        ));
        match open(&path)? {
            Ok(mut connection) => Ok(work(&mut connection)?),
            Err(_) => Ok(T::default()),
        }
    }
}

/// The major version of a device's driver, as CUDA counts.
pub fn driver_of(device: &Device) -> i32 {
    device.driver_version / 1000
}

/// Opens the file and makes the tables of a new one. The inner error says why a file is not ours.
fn open(path: &Path) -> rusqlite::Result<Result<Connection, String>> {
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let for_writing = flags | OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let connection = Connection::open_with_flags(path, for_writing)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // One transaction: another process may be making the tables.
    let reading = connection.unchecked_transaction()?;
    let number = |name: &str| reading.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 =
        reading.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    reading.commit()?;
    if (application, version, tables) == (0, 0, 0) {
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; \
             CREATE TABLE IF NOT EXISTS results (\
                 device TEXT NOT NULL, driver INTEGER NOT NULL, key TEXT NOT NULL, \
                 kernel TEXT NOT NULL, program TEXT NOT NULL, seconds REAL NOT NULL, \
                 PRIMARY KEY (device, driver, key, kernel)) WITHOUT ROWID; \
             PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT"
        ))?;
        return Ok(Ok(connection));
    }
    match (application, version) {
        (APPLICATION, VERSION) => Ok(Ok(connection)),
        (APPLICATION, _) => Ok(Err(format!("it has version {version}, this is version {VERSION}"))),
        _ => Ok(Err("it is not a store of tuning results".to_owned())),
    }
}

/// Whether an error means that the file is no database, that its tables are not those of this
/// version (the statements are correct), or that a value has another type than its column.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error;
    match error {
        Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::InvalidColumnType(..)
        | Error::SqlInputError { .. }
        | Error::Utf8Error(..) => true,
        error => {
            let code = error.sqlite_error_code();
            matches!(code, Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
        }
    }
}

/// The path of the file that SQLite keeps beside a database: "tuning.sqlite3-journal".
fn dashed(path: &Path, name: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push("-");
    text.push(name);
    PathBuf::from(text)
}

/// Renames the file to the first free name. Returns the name.
fn set_aside(path: &Path) -> std::io::Result<PathBuf> {
    let free = (1..)
        .map(|count| path.with_extension(format!("aside-{count}.sqlite3")))
        .find(|name| !name.exists());
    let aside = free.unwrap_or_else(|| path.with_extension("aside.sqlite3"));
    std::fs::rename(path, &aside)?;
    // SQLite would apply the journal of an interrupted write to the new file.
    let _ = std::fs::rename(dashed(path, "journal"), dashed(&aside, "journal"));
    Ok(aside)
}
