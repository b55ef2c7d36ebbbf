//! A function's variables from its debug information: their locations, and the members of their
//! types.
//!
//! Supported locations are those without computations: a register, memory at an offset from a
//! register, from the frame base or from the CFA, a fixed address, and pieces in registers. Values
//! at a function's entry (`DW_OP_entry_value`) are not locations. Split units in other files are
//! not read.
//!
//! Sources: DWARF 5, 2.6 (locations), 4.1 (variables), 5.7 (structures), 6.2.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use gimli::{
    AttributeValue, DebugInfoOffset, DebuggingInformationEntry, EndianSlice, Expression, Operation, RunTimeEndian,
    Unit, UnitOffset, UnitRef,
};

use crate::dwarf_budget::MAX_DEPTH;
use crate::entry_ranges::EntryRanges;

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;
type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
type Entry<'a> = DebuggingInformationEntry<Slice<'a>>;

/// Maximum number of entries read in a unit.
const MAX_ENTRIES: usize = 1 << 21;
/// Maximum number of a function's variables, and of all their places together.
const MAX_VARIABLES: usize = 4096;
const MAX_PLACES: usize = 1 << 14;
/// Maximum length of a chain of references, such as typedefs of typedefs.
const MAX_REFERENCES: usize = 16;
/// Maximum nesting of structures.
const MAX_NESTING: usize = 16;
/// Maximum number of a structure's members that are read.
const MAX_MEMBERS: usize = 4096;

/// A type, identified by its position in a file's debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId {
    unit: usize,
    entry: usize,
}

/// A range of addresses, excluding its end.
pub type Extent = (u64, u64);

/// The variables visible in a function.
#[derive(Clone, Debug, Default)]
pub struct FunctionVariables {
    /// The function's code ranges (svma).
    pub extents: Vec<Extent>,
    /// The variables; those of inner blocks and of inlined calls follow those of the enclosing
    /// ones.
    pub variables: Vec<Variable>,
    /// The base of frame offsets.
    pub frame_base: Option<FrameBase>,
    /// Whether fields are accessed through pointers with a dot, as in Rust and Swift.
    pub by_dot: bool,
}

/// The base of a function's frame offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameBase {
    /// The canonical frame address.
    Cfa,
    /// A register's value (DWARF register number).
    Register(u16),
}

/// A variable or a parameter.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// Type, if known.
    pub type_id: Option<TypeId>,
    /// Places with the code ranges (svma) in which they apply; `None` means the whole scope.
    pub places: Vec<(Option<Extent>, Place)>,
    /// The code ranges (svma) in which the name refers to this variable; empty for the whole
    /// function.
    pub scope: Vec<Extent>,
}

/// The location of a variable or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a register: `size` bytes of the variable from `offset` on; the rest of it if `size` is
    /// `None`.
    Register {
        /// DWARF register number.
        register: u16,
        /// Offset in the variable, in bytes.
        offset: u64,
        /// Number of bytes.
        size: Option<u64>,
    },
    /// In memory, at an offset from a register's value.
    Memory {
        /// DWARF register number.
        register: u16,
        /// Offset added to the register's value.
        offset: i64,
    },
    /// In memory, at an offset from the frame base.
    Frame(i64),
    /// In memory at an address (svma).
    Static(u64),
}

/// The target of a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointee {
    /// The target's type.
    pub type_id: TypeId,
    /// Whether the pointer is a C++ reference, whose fields are accessed like those of the target
    /// itself.
    pub is_reference: bool,
}

/// The part of a value at an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The access path that follows the value's name: `.rows[3].number`; empty for the value
    /// itself.
    pub path: String,
    /// The part's type. `None` if it is unknown which of several inner parts is meant.
    pub type_id: Option<TypeId>,
}

impl Variable {
    /// Returns the variable's places at an address in its function's code.
    pub fn places_at(&self, svma: u64) -> impl Iterator<Item = Place> + '_ {
        let has = move |(start, end): &Extent| (*start..*end).contains(&svma);
        let is_visible = self.scope.is_empty() || self.scope.iter().any(has);
        let places = self.places.iter().filter(move |(extent, _)| is_visible && extent.as_ref().is_none_or(has));
        places.map(|(_, place)| *place)
    }
}

/// A file's debug information, with a cache of parsed units.
pub(crate) struct Reader<'r, 'a> {
    sections: &'r Dwarf<'a>,
    units: RefCell<HashMap<usize, Option<Rc<Unit<Slice<'a>>>>>>,
}

impl<'r, 'a> Reader<'r, 'a> {
    pub(crate) fn new(sections: &'r Dwarf<'a>) -> Self {
        Self { sections, units: RefCell::default() }
    }

    fn unit(&self, offset: usize) -> Option<Rc<Unit<Slice<'a>>>> {
        if let Some(known) = self.units.borrow().get(&offset) {
            return known.clone();
        }
        let header = self.sections.debug_info.header_from_offset(DebugInfoOffset(offset)).ok();
        let unit = header.and_then(|header| self.sections.unit(header).ok()).map(Rc::new);
        self.units.borrow_mut().insert(offset, unit.clone());
        unit
    }

    /// Returns the unit that contains an entry of the section, with the entry's position in it.
    fn unit_with(&self, entry: usize) -> Option<TypeId> {
        let mut units = self.sections.units();
        while let Ok(Some(header)) = units.next() {
            let Some(offset) = header.debug_info_offset() else { continue };
            if let Some(within) = DebugInfoOffset(entry).to_unit_offset(&header) {
                return Some(TypeId { unit: offset.0, entry: within.0 });
            }
        }
        None
    }

    /// Resolves a reference from an entry of `unit`.
    fn referred(&self, unit: usize, value: Option<AttributeValue<Slice<'a>>>) -> Option<TypeId> {
        match value? {
            AttributeValue::UnitRef(UnitOffset(entry)) => Some(TypeId { unit, entry }),
            AttributeValue::DebugInfoRef(DebugInfoOffset(entry)) => self.unit_with(entry),
            _ => None,
        }
    }

    fn with_entry<T>(
        &self,
        at: TypeId,
        read: impl FnOnce(UnitRef<'_, Slice<'a>>, &Entry<'a>) -> Option<T>,
    ) -> Option<T> {
        let unit = self.unit(at.unit)?;
        let unit = unit.unit_ref(self.sections);
        let entry = unit.entry(UnitOffset(at.entry)).ok()?;
        read(unit, &entry)
    }

    /// Returns the variables of the function that contains an address, from one of these units.
    pub(crate) fn function(&self, units: &[usize], svma: u64) -> Option<FunctionVariables> {
        units.iter().find_map(|offset| self.function_in(*offset, svma))
    }

    fn function_in(&self, offset: usize, svma: u64) -> Option<FunctionVariables> {
        let unit = self.unit(offset)?;
        let unit = unit.unit_ref(self.sections);
        let mut found = FunctionVariables::default();
        let mut statics = Vec::new();
        let mut places = 0;
        // The depth of the function and of its blocks around the current entry, with their ranges.
        let mut function: Option<isize> = None;
        let mut scopes: Vec<(isize, Vec<Extent>)> = Vec::new();
        let mut entries = unit.entries();
        for _ in 0..MAX_ENTRIES {
            let Ok(Some(entry)) = entries.next_dfs() else { break };
            let depth = entry.depth();
            if depth > MAX_DEPTH {
                return None;
            }
            if function.is_some_and(|outer| depth <= outer) {
                (function, scopes) = (None, Vec::new());
            }
            scopes.retain(|(outer, _)| *outer < depth);
            let is_inside = function.is_some();
            match entry.tag() {
                gimli::DW_TAG_compile_unit => {
                    let language = entry.attr_value(gimli::DW_AT_language);
                    found.by_dot =
                        matches!(language, Some(AttributeValue::Language(gimli::DW_LANG_Rust | gimli::DW_LANG_Swift)));
                }
                gimli::DW_TAG_subprogram if !is_inside => {
                    let extents = extents(unit, entry);
                    if extents.iter().any(|(start, end)| (*start..*end).contains(&svma)) {
                        found.extents = extents;
                        found.frame_base =
                            entry.attr_value(gimli::DW_AT_frame_base).and_then(|base| frame_base(unit, &base));
                        function = Some(depth);
                    }
                }
                gimli::DW_TAG_lexical_block
                | gimli::DW_TAG_inlined_subroutine
                | gimli::DW_TAG_try_block
                | gimli::DW_TAG_catch_block
                    if is_inside =>
                {
                    let extents = extents(unit, entry);
                    // Blocks without code have no variables of their own.
                    if !extents.is_empty() {
                        scopes.push((depth, extents));
                    }
                }
                // A function declared inside another has its own variables.
                gimli::DW_TAG_subprogram => scopes.push((depth, vec![(0, 0)])),
                gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                    let found_places = self.places(unit, entry, !is_inside);
                    let of_function = is_inside && found.variables.len() < MAX_VARIABLES;
                    let of_unit = !is_inside && statics.len() < 16 * MAX_VARIABLES;
                    places += if is_inside { found_places.len() } else { 0 };
                    if found_places.is_empty() || places > MAX_PLACES || !(of_function || of_unit) {
                        continue;
                    }
                    let Some((name, type_id)) = self.named(offset, unit, entry) else { continue };
                    let scope = scopes.last().map(|(_, extents)| extents.clone()).unwrap_or_default();
                    let variable = Variable { name, type_id, places: found_places, scope };
                    if is_inside { found.variables.push(variable) } else { statics.push(variable) }
                }
                _ => {}
            }
        }
        if found.extents.is_empty() {
            return None;
        }
        statics.append(&mut found.variables);
        found.variables = statics;
        Some(found)
    }

    /// Returns a variable's places. For variables outside functions, only fixed addresses.
    fn places(&self, unit: UnitRef<'_, Slice<'a>>, entry: &Entry<'a>, is_static: bool) -> Vec<(Option<Extent>, Place)> {
        let Some(location) = entry.attr_value(gimli::DW_AT_location) else { return Vec::new() };
        let whole = |expression: Expression<Slice<'a>>| {
            let places = places_of(unit, expression);
            places
                .into_iter()
                .filter(|place| !is_static || matches!(place, Place::Static(_)))
                .map(|place| (None, place))
        };
        if let Some(expression) = location.exprloc_value() {
            return whole(expression).collect();
        }
        if is_static {
            return Vec::new();
        }
        let mut all = Vec::new();
        if let Ok(Some(mut list)) = unit.attr_locations(location) {
            while let Ok(Some(item)) = list.next() {
                if all.len() >= MAX_PLACES {
                    break;
                }
                let extent = Some((item.range.begin, item.range.end));
                all.extend(places_of(unit, item.data).into_iter().map(|place| (extent, place)));
            }
        }
        all
    }

    /// Returns a variable's name and type, from the entry itself or from its abstract origin.
    fn named(
        &self,
        offset: usize,
        unit: UnitRef<'_, Slice<'a>>,
        entry: &Entry<'a>,
    ) -> Option<(String, Option<TypeId>)> {
        let own = |unit: UnitRef<'_, Slice<'a>>, at: usize, entry: &Entry<'a>| {
            let name = entry.attr_value(gimli::DW_AT_name).and_then(|name| unit.attr_string(name).ok());
            let next = [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification];
            let next = next.iter().find_map(|name| self.referred(at, entry.attr_value(*name)));
            let type_id = self.referred(at, entry.attr_value(gimli::DW_AT_type));
            (name.map(|name| name.to_string_lossy().into_owned()), type_id, next)
        };
        let (mut name, mut type_id, mut next) = own(unit, offset, entry);
        for _ in 0..MAX_REFERENCES {
            let Some(origin) = next.filter(|_| name.is_none() || type_id.is_none()) else { break };
            let (known_name, known_type, further) =
                self.with_entry(origin, |unit, entry| Some(own(unit, origin.unit, entry)))?;
            (name, type_id, next) = (name.or(known_name), type_id.or(known_type), further);
        }
        name.filter(|name| !name.is_empty()).map(|name| (name, type_id))
    }

    /// Strips typedefs and qualifiers from a type; returns the type with its tag.
    fn stripped(&self, mut type_id: TypeId) -> Option<(TypeId, gimli::DwTag)> {
        for _ in 0..MAX_REFERENCES {
            let (tag, next) = self.with_entry(type_id, |_, entry| {
                Some((entry.tag(), self.referred(type_id.unit, entry.attr_value(gimli::DW_AT_type))))
            })?;
            match tag {
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_atomic_type
                | gimli::DW_TAG_template_alias => type_id = next?,
                _ => return Some((type_id, tag)),
            }
        }
        None
    }

    /// Returns the target of a pointer or a reference. `None` for other types and for pointers
    /// without a known target.
    pub(crate) fn pointee(&self, type_id: TypeId) -> Option<Pointee> {
        let (type_id, tag) = self.stripped(type_id)?;
        let is_reference = match tag {
            gimli::DW_TAG_pointer_type => false,
            gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type => true,
            _ => return None,
        };
        let type_id =
            self.with_entry(type_id, |_, entry| self.referred(type_id.unit, entry.attr_value(gimli::DW_AT_type)))?;
        Some(Pointee { type_id, is_reference })
    }

    /// Returns the size of a type's values, in bytes.
    pub(crate) fn size(&self, type_id: TypeId) -> Option<u64> {
        self.size_within(type_id, MAX_NESTING)
    }

    fn size_within(&self, type_id: TypeId, left: usize) -> Option<u64> {
        let (type_id, tag) = self.stripped(type_id)?;
        self.with_entry(type_id, |unit, entry| {
            if let Some(size) = entry.attr_value(gimli::DW_AT_byte_size).and_then(|size| size.udata_value()) {
                return Some(size);
            }
            match tag {
                gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type => {
                    Some(unit.encoding().address_size.into())
                }
                gimli::DW_TAG_array_type => {
                    let element = self.referred(type_id.unit, entry.attr_value(gimli::DW_AT_type))?;
                    self.size_within(element, left.checked_sub(1)?)?.checked_mul(self.count(unit, type_id)?)
                }
                _ => None,
            }
        })
    }

    /// Returns an array's total number of elements over all dimensions.
    fn count(&self, unit: UnitRef<'_, Slice<'a>>, type_id: TypeId) -> Option<u64> {
        self.dimensions(unit, type_id)?.into_iter().try_fold(1, u64::checked_mul)
    }

    /// Returns the number of elements in each dimension of an array, the outermost first. `None` if
    /// the type does not contain it.
    fn dimensions(&self, unit: UnitRef<'_, Slice<'a>>, type_id: TypeId) -> Option<Vec<u64>> {
        let mut tree = unit.entries_tree(Some(UnitOffset(type_id.entry))).ok()?;
        let mut children = tree.root().ok()?.children();
        let mut counts = Vec::new();
        for _ in 0..MAX_REFERENCES {
            let Ok(Some(child)) = children.next() else { break };
            let entry = child.entry();
            if entry.tag() != gimli::DW_TAG_subrange_type {
                continue;
            }
            let number = |name| entry.attr_value(name).and_then(|value: AttributeValue<_>| value.udata_value());
            let own = match (number(gimli::DW_AT_count), number(gimli::DW_AT_upper_bound)) {
                (Some(count), _) => count,
                (None, Some(last)) => last.checked_add(1)?,
                (None, None) => return None,
            };
            counts.push(own);
        }
        (!counts.is_empty()).then_some(counts)
    }

    /// Returns the part at an offset in a value of a type; `None` if the access doesn't fit one
    /// part.
    ///
    /// The access has `width` bytes (`None` if unknown).
    pub(crate) fn part(&self, type_id: TypeId, offset: u64, width: Option<u64>) -> Option<Part> {
        self.part_within(type_id, offset, width.unwrap_or(1).max(1), MAX_NESTING)
    }

    fn part_within(&self, type_id: TypeId, offset: u64, width: u64, left: usize) -> Option<Part> {
        let (bare, tag) = self.stripped(type_id)?;
        let left = left.checked_sub(1)?;
        let fits = |start: u64, size: u64| {
            offset >= start && offset.checked_add(width).is_some_and(|end| end <= start.saturating_add(size))
        };
        match tag {
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type => {
                let mut found: Vec<(u64, Option<String>, TypeId)> = Vec::new();
                for member in self.members(bare)? {
                    let Some(size) = self.size(member.2) else { continue };
                    if fits(member.0, size) {
                        found.push(member);
                    }
                }
                let [(start, name, type_id)] = found.as_slice() else { return None };
                let inner = self.part_within(*type_id, offset - start, width, left);
                let own = name.as_ref().map_or_else(String::new, |name| format!(".{name}"));
                match inner {
                    Some(inner) => Some(Part { path: own + &inner.path, type_id: inner.type_id }),
                    // A base class without a name adds no information.
                    None if own.is_empty() => None,
                    None => Some(Part { path: own, type_id: None }),
                }
            }
            gimli::DW_TAG_array_type => {
                let element =
                    self.with_entry(bare, |_, entry| self.referred(bare.unit, entry.attr_value(gimli::DW_AT_type)))?;
                let size = self.size(element).filter(|size| *size > 0)?;
                let unit = self.unit(bare.unit)?;
                let dimensions = self.dimensions(unit.unit_ref(self.sections), bare)?;
                let mut number = offset / size;
                let mut indexes = String::new();
                for count in dimensions.iter().rev() {
                    indexes.insert_str(0, &format!("[{}]", number.checked_rem(*count)?));
                    number /= count;
                }
                // Offsets beyond its end belong to something else.
                if number != 0 {
                    return None;
                }
                let inner = self.part_within(element, offset % size, width, left)?;
                Some(Part { path: indexes + &inner.path, type_id: inner.type_id })
            }
            gimli::DW_TAG_union_type => None,
            _ => {
                let size = self.size(bare)?;
                (offset == 0 && width <= size).then(|| Part { path: String::new(), type_id: Some(type_id) })
            }
        }
    }

    /// Returns a structure's members: offset, name (none for base classes), type. `None` if the
    /// structure is only declared, or if a member can't be determined.
    fn members(&self, type_id: TypeId) -> Option<Vec<(u64, Option<String>, TypeId)>> {
        let unit = self.unit(type_id.unit)?;
        let unit = unit.unit_ref(self.sections);
        let mut tree = unit.entries_tree(Some(UnitOffset(type_id.entry))).ok()?;
        let root = tree.root().ok()?;
        if root.entry().attr_value(gimli::DW_AT_declaration).is_some() {
            return None;
        }
        let mut children = root.children();
        let mut members = Vec::new();
        for _ in 0..MAX_MEMBERS {
            let Ok(Some(child)) = children.next() else { break };
            let entry = child.entry();
            let is_member = match entry.tag() {
                gimli::DW_TAG_member => true,
                gimli::DW_TAG_inheritance => false,
                // The active variant of an enumeration is not known here.
                gimli::DW_TAG_variant_part => return None,
                _ => continue,
            };
            let is_static =
                [gimli::DW_AT_external, gimli::DW_AT_declaration].iter().any(|name| entry.attr_value(*name).is_some());
            if is_static {
                continue;
            }
            // Bit fields have no byte offset.
            let bits = [gimli::DW_AT_bit_size, gimli::DW_AT_data_bit_offset];
            if bits.iter().any(|name| entry.attr_value(*name).is_some()) {
                continue;
            }
            let offset = match entry.attr_value(gimli::DW_AT_data_member_location) {
                None => 0,
                Some(value) => match value.udata_value() {
                    Some(offset) => offset,
                    // A virtual base class.
                    None => continue,
                },
            };
            let name = entry.attr_value(gimli::DW_AT_name).and_then(|name| unit.attr_string(name).ok());
            let name = name.map(|name| name.to_string_lossy().into_owned()).filter(|_| is_member);
            if let Some(type_id) = self.referred(type_id.unit, entry.attr_value(gimli::DW_AT_type)) {
                members.push((offset, name, type_id));
            }
        }
        Some(members)
    }
}

/// Returns an entry's code ranges.
fn extents<'a>(unit: UnitRef<'_, Slice<'a>>, entry: &Entry<'a>) -> Vec<Extent> {
    let ranges = EntryRanges::read(unit, Some(entry.offset())).into_iter().flatten();
    ranges.filter(|(begin, end)| begin < end).take(MAX_VARIABLES).collect()
}

fn frame_base<'a>(unit: UnitRef<'_, Slice<'a>>, value: &AttributeValue<Slice<'a>>) -> Option<FrameBase> {
    let mut operations = value.exprloc_value()?.operations(unit.encoding());
    let base = match operations.next().ok()?? {
        Operation::CallFrameCFA => FrameBase::Cfa,
        Operation::Register { register } => FrameBase::Register(register.0),
        _ => return None,
    };
    operations.next().ok()?.is_none().then_some(base)
}

/// Returns the places in an expression without computations. Empty for all other expressions.
fn places_of<'a>(unit: UnitRef<'_, Slice<'a>>, expression: Expression<Slice<'a>>) -> Vec<Place> {
    let mut operations = expression.operations(unit.encoding());
    let mut places = Vec::new();
    // The start of the next piece, and a register whose piece's size is not known yet.
    let (mut start, mut waiting) = (0_u64, None);
    let mut has_pieces = false;
    for _ in 0..64 {
        let Ok(operation) = operations.next() else { return Vec::new() };
        let Some(operation) = operation else {
            match waiting {
                Some(register) if !has_pieces => places.push(Place::Register { register, offset: 0, size: None }),
                Some(_) => return Vec::new(),
                None => {}
            }
            return places;
        };
        let place = match operation {
            Operation::Register { register } if waiting.is_none() => {
                waiting = Some(register.0);
                continue;
            }
            Operation::Piece { size_in_bits, bit_offset: None } => {
                has_pieces = true;
                let size = size_in_bits / 8;
                if let Some(register) = waiting.take() {
                    places.push(Place::Register { register, offset: start, size: Some(size) });
                }
                start = start.saturating_add(size);
                continue;
            }
            Operation::FrameOffset { offset } => Place::Frame(offset),
            Operation::RegisterOffset { register, offset, base_type: UnitOffset(0) } => {
                Place::Memory { register: register.0, offset }
            }
            Operation::Address { address } => Place::Static(address),
            Operation::AddressIndex { index } => match unit.address(index) {
                Ok(address) => Place::Static(address),
                Err(_) => return Vec::new(),
            },
            _ => return Vec::new(),
        };
        // A whole variable in memory: no operation may follow, and no piece may precede.
        let is_whole = !has_pieces && waiting.is_none() && places.is_empty();
        return match operations.next() {
            Ok(None) if is_whole => vec![place],
            _ => Vec::new(),
        };
    }
    Vec::new()
}
