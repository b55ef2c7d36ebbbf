//! A map of a few entries.

use std::borrow::Borrow;

/// A map that is a list, for a few entries: of each type, its code is a tenth of a `BTreeMap`'s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VecMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for VecMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: PartialEq, V> VecMap<K, V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    fn place<Q: PartialEq + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        self.0.iter().position(|(other, _)| other.borrow() == key)
    }

    pub(crate) fn get<Q: PartialEq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.place(key).map(|place| &self.0[place].1)
    }

    /// The value of a key, with that of the type by default if there is none.
    pub(crate) fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let place = self.place(&key).unwrap_or_else(|| {
            self.0.push((key, V::default()));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    /// Puts a value in the place of the one that the key has.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self.place(&key) {
            Some(place) => self.0[place].1 = value,
            None => self.0.push((key, value)),
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.place(key).map(|place| self.0.remove(place).1)
    }

    pub(crate) fn into_pairs(self) -> Vec<(K, V)> {
        self.0
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&V) -> bool) {
        self.0.retain(|(_, value)| keep(value));
    }
}
