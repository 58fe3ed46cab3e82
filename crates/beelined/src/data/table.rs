//! Connections by their numbers.

/// Bits of a number that are the place in the table; the rest is never used twice.
const PLACE_BITS: u32 = 24;
/// The most connections at a time.
pub const CONNECTIONS_MAX: usize = 1 << 20;

/// Things by numbers that are never used twice.
pub struct Table<T> {
    places: Vec<Option<(u64, T)>>,
    free: Vec<usize>,
    serial: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { places: Vec::new(), free: Vec::new(), serial: 0 }
    }
}

impl<T> Table<T> {
    /// Adds what `make` makes for its number. `None` when the table is full.
    pub fn insert(&mut self, make: impl FnOnce(u64) -> T) -> Option<u64> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < CONNECTIONS_MAX => {
                self.places.push(None);
                self.places.len().saturating_sub(1)
            }
            None => return None,
        };
        self.serial = self.serial.wrapping_add(1);
        let number = self.serial << PLACE_BITS | place as u64;
        if let Some(entry) = self.places.get_mut(place) {
            *entry = Some((number, make(number)));
        }
        Some(number)
    }

    fn place(number: u64) -> usize {
        (number & ((1 << PLACE_BITS) - 1)) as usize
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        self.places.get(Self::place(number))?.as_ref().filter(|(other, _)| *other == number).map(|(_, thing)| thing)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let entry = self.places.get_mut(Self::place(number))?.as_mut();
        entry.filter(|(other, _)| *other == number).map(|(_, thing)| thing)
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        self.get(number)?;
        let place = Self::place(number);
        let (_, thing) = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some(thing)
    }

    /// Whether a number was ever given out.
    #[must_use]
    pub fn was_ours(&self, number: u64) -> bool {
        (1..=self.serial).contains(&(number >> PLACE_BITS))
    }

    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.places.iter().flatten().map(|(number, _)| *number)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places.iter().flatten().map(|(number, thing)| (*number, thing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_used_twice() {
        let mut table = Table::default();
        let first = table.insert(|number| number).unwrap();
        let second = table.insert(|_| 7).unwrap();
        assert_eq!((table.get(first), table.get(second)), (Some(&first), Some(&7)));
        assert_eq!(table.remove(first), Some(first));
        assert_eq!((table.remove(first), table.get(first)), (None, None));
        let third = table.insert(|_| 9).unwrap();
        assert_ne!(third, first);
        assert!(table.was_ours(first) && table.was_ours(third) && !table.was_ours(third + (1 << PLACE_BITS)));
        assert!(!table.was_ours(0) && !table.was_ours(1));
        assert_eq!(table.numbers().count(), 2);
    }
}
