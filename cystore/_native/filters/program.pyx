"""Runs a SQL92 expression over a record's property string, without an object for the record or its properties.

The rules are those of RocketMQ's filter module: an operation with NULL gives NULL, text is converted to the type of the
other side, and a failed conversion ends the evaluation without a match (ComparisonExpression, LogicExpression,
UnaryExpression). Any other error, such as a lack of memory or an interrupt, is raised: it is not about the message.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

import re
import unicodedata

from cystore._native.layout cimport SYS_FLAG_COMPRESSED
from cystore._native.record.message cimport Message, message_view
from cystore._native.record.property_read cimport property_next, property_view
from cystore._native.record.record_view cimport record_view, same_text

cdef enum:
    STACK = 256             # values; the compiler of expressions uses fewer
    NAMES_MAX = 256
    EXACT_DIGITS = 15       # a double holds that many decimal digits exactly
    EXACT_POWER = 22        # and 10 to this power

STACK_MAX = STACK
PROPERTY_NAMES_MAX = NAMES_MAX

# Kinds of steps.
cdef enum:
    PUSH_PROPERTY
    PUSH_NULL
    PUSH_FALSE
    PUSH_TRUE
    PUSH_INT
    PUSH_LONG
    PUSH_DOUBLE
    PUSH_TEXT
    NEGATE
    NOT
    CAST
    EQUAL
    GREATER
    GREATER_EQUAL
    LESS
    LESS_EQUAL
    IN_LIST
    AND
    OR
    SKIP_IF_FALSE
    SKIP_IF_TRUE
    KINDS

STEP_KINDS = {
    "property": PUSH_PROPERTY, "null": PUSH_NULL, "false": PUSH_FALSE, "true": PUSH_TRUE, "int": PUSH_INT,
    "long": PUSH_LONG,
    "double": PUSH_DOUBLE, "text": PUSH_TEXT, "negate": NEGATE, "not": NOT, "cast": CAST, "=": EQUAL, ">": GREATER,
    ">=": GREATER_EQUAL, "<": LESS, "<=": LESS_EQUAL, "in": IN_LIST, "and": AND, "or": OR,
    "skip_if_false": SKIP_IF_FALSE,
    "skip_if_true": SKIP_IF_TRUE,
}

# Types of values: Java's classes.
cdef enum:
    IS_NULL
    IS_BOOLEAN
    IS_INT
    IS_LONG
    IS_DOUBLE
    IS_TEXT

cdef struct value:
    int type
    int text_len
    int64_t whole           # a Boolean is 0 or 1
    double real
    const uint8_t* text

cdef double[EXACT_POWER + 1] _POWERS
_POWERS[:] = [10.0**n for n in range(EXACT_POWER + 1)]

_DECIMAL = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_BLANKS = "".join(map(chr, range(33)))  # the characters that String.trim removes


# ----------------------------------------------------------------------------- text to numbers, as in Java


cdef bint _slow_whole(const uint8_t* text, int length, int64_t* number) except -1 with gil:
    """Long.valueOf for text with digits of other scripts; False where Java throws."""
    cdef int64_t sum = 0
    try:
        given = (<const char*>text)[:length].decode("utf-8")
        sign = given[:1] if given[:1] in ("+", "-") else ""
        digits = given[len(sign):]
        # Java examines each 16-bit unit, so a character above U+FFFF is no digit.
        if not digits or not all([digit <= "\uffff" and unicodedata.decimal(digit,
                                                                            None) is not None for digit in digits]):
            return False
        whole = int(sign + "".join([str(unicodedata.decimal(digit)) for digit in digits]))
        if not -(1 << 63) <= whole < 1 << 63:
            return False
        sum = whole
    except ValueError:
        return False
    number[0] = sum
    return True


cdef bint _text_whole(const uint8_t* text, int length, int64_t* number) except -1 nogil:
    """Long.valueOf: an optional sign, then only digits; False where Java throws."""
    cdef bint negative = False
    cdef uint64_t sum = 0
    cdef uint64_t limit = <uint64_t>INT64_MAX
    cdef uint64_t digit
    cdef int i = 0
    if length > 0 and (text[0] == 43 or text[0] == 45):
        negative = text[0] == 45
        i = 1
    if i == length:
        return False
    if negative:
        limit += 1
    while i < length:
        if text[i] >= 0x80:
            return _slow_whole(text, length, number)
        if not c'0' <= text[i] <= c'9':
            return False
        digit = text[i] - c'0'
        if sum > (limit - digit) // 10:
            return False
        sum = sum * 10 + digit
        i += 1
    number[0] = <int64_t>(0 - sum) if negative else <int64_t>sum
    return True


cdef bint _slow_real(const uint8_t* text, int length, double* number) except -1 with gil:
    """Double.valueOf for any text; False where Java throws."""
    cdef double real
    try:
        given = (<const char*>text)[:length].decode("utf-8").strip(_BLANKS)
        if _DECIMAL.fullmatch(given):
            real = float(given if given.endswith(("y", "N")) else given.rstrip("fFdD"))
        else:
            hexadecimal = _HEXADECIMAL.fullmatch(given)
            if hexadecimal is None:
                return False
            try:
                real = float.fromhex(hexadecimal[1])
            except OverflowError:
                real = float("-inf" if given[0] == "-" else "inf")
    except ValueError:
        return False
    number[0] = real
    return True


cdef bint _text_real(const uint8_t* text, int length, double* number) except -1 nogil:
    """Double.valueOf. Short decimals without an exponent are exact here; `_slow_real` converts all other text."""
    cdef bint negative = False
    cdef int64_t digits = 0
    cdef int i = 0
    cdef int digit_count = 0
    cdef int point = -1
    cdef int power = 0
    if length > 0 and (text[0] == 43 or text[0] == 45):
        negative = text[0] == 45
        i = 1
    while i < length:
        if text[i] == 46 and point < 0:
            point = digit_count
        elif c'0' <= text[i] <= c'9' and digit_count < EXACT_DIGITS:
            digits = digits * 10 + (text[i] - c'0')
            digit_count += 1
        else:
            return _slow_real(text, length, number)
        i += 1
    if digit_count == 0:
        return False
    if point >= 0:
        power = digit_count - point
    number[0] = <double>digits / _POWERS[power]
    if negative:
        number[0] = -number[0]
    return True


# ----------------------------------------------------------------------------------------------------------- comparing


cdef inline int _order_whole(int64_t left, int64_t right) noexcept nogil:
    return (left > right) - (left < right)


cdef inline int _order_real(double left, double right) noexcept nogil:
    """Double.compare: -0.0 is below 0.0; NaN is above all numbers and equals itself."""
    cdef int64_t left_bits, right_bits
    if left < right:
        return -1
    if left > right:
        return 1
    if left != left or right != right:
        return (left != left) - (right != right)
    memcpy(&left_bits, &left, sizeof(double))
    memcpy(&right_bits, &right, sizeof(double))
    return _order_whole(left_bits, right_bits)


cdef inline bint _is_true_text(const value* v) noexcept nogil:
    """Boolean.valueOf(String)."""
    return (v.text_len == 4 and (v.text[0] | 32) == 116 and (v.text[1] | 32) == 114 and (v.text[2] | 32) == 117
            and (v.text[3] | 32) == 101)


cdef inline bint _to_whole(const value* v, bint is_int, int64_t* number) except -1 nogil:
    if not _text_whole(v.text, v.text_len, number):
        return False
    return not is_int or INT32_MIN <= number[0] <= INT32_MAX


cdef bint _order(const value* left, const value* right, int* order) except -1 nogil:
    """ComparisonExpression.__compare; False where it throws. The order of types that cannot be compared is -1."""
    cdef int64_t whole
    cdef double real
    order[0] = -1
    if left.type == IS_TEXT:
        if right.type == IS_TEXT:
            if left.text_len == right.text_len and same_text(left.text, right.text, left.text_len):
                order[0] = 0
        elif right.type == IS_BOOLEAN:
            order[0] = _order_whole(_is_true_text(left), right.whole)
        elif right.type == IS_DOUBLE:
            if not _text_real(left.text, left.text_len, &real):
                return False
            order[0] = _order_real(real, right.real)
        else:
            if not _to_whole(left, right.type == IS_INT, &whole):
                return False
            order[0] = _order_whole(whole, right.whole)
    elif left.type == IS_BOOLEAN:
        if right.type == IS_TEXT:
            return False  # RocketMQ casts the wrong side
        if right.type == IS_BOOLEAN:
            order[0] = _order_whole(left.whole, right.whole)
    elif right.type == IS_BOOLEAN:
        pass
    elif right.type == IS_TEXT:
        if left.type == IS_DOUBLE:
            if not _text_real(right.text, right.text_len, &real):
                return False
            order[0] = _order_real(left.real, real)
        else:
            if not _to_whole(right, left.type == IS_INT, &whole):
                return False
            order[0] = _order_whole(left.whole, whole)
    elif left.type == IS_DOUBLE or right.type == IS_DOUBLE:
        order[0] = _order_real(left.real if left.type == IS_DOUBLE else <double>left.whole,
                               right.real if right.type == IS_DOUBLE else <double>right.whole)
    else:
        order[0] = _order_whole(left.whole, right.whole)
    return True


cdef bint _compare(int kind, value* left, const value* right) except -1 nogil:
    """Puts the result in the place of `left`. False where RocketMQ throws."""
    cdef int order = 0
    cdef double low, high
    if kind == EQUAL:
        if (left.type == IS_NULL) != (right.type == IS_NULL):
            left.type = IS_NULL if left.type == IS_NULL else IS_BOOLEAN
            left.whole = 0
            return True
        if left.type != IS_NULL and not _order(left, right, &order):
            return False
        left.type = IS_BOOLEAN
        left.whole = order == 0
        return True
    if left.type == IS_NULL:
        return True
    if right.type == IS_NULL:
        left.type = IS_NULL
        return True
    if left.type == IS_TEXT and right.type == IS_TEXT:
        if not _text_real(left.text, left.text_len, &low) or not _text_real(right.text, right.text_len, &high):
            return False
        order = _order_real(low, high)
    elif not _order(left, right, &order):
        return False
    left.type = IS_BOOLEAN
    if kind == GREATER:
        left.whole = order > 0
    elif kind == GREATER_EQUAL:
        left.whole = order >= 0
    elif kind == LESS:
        left.whole = order < 0
    else:
        left.whole = order <= 0
    return True


cdef bint _listed(const filter_text* texts, int count, const value* v) noexcept nogil:
    cdef int low = 0
    cdef int high = count
    cdef int middle, order
    while low < high:
        middle = (low + high) // 2
        order = texts[middle].length - v.text_len
        if order == 0:
            order = memcmp(texts[middle].text, v.text, v.text_len)
        if order == 0:
            return True
        if order < 0:
            low = middle + 1
        else:
            high = middle
    return False


cdef void _negate(value* v) noexcept nogil:
    """UnaryExpression.negate of a number; integers wrap around as in Java. NULL for any other type."""
    if v.type == IS_INT:
        v.whole = <int64_t><int32_t>(<uint64_t>0 - <uint64_t>v.whole)
    elif v.type == IS_LONG:
        v.whole = <int64_t>(<uint64_t>0 - <uint64_t>v.whole)
    elif v.type == IS_DOUBLE:
        v.real = -v.real
    else:
        v.type = IS_NULL


cdef void _three_valued(int kind, value* left, const value* right) noexcept nogil:
    """AND and OR of two values that are Boolean or NULL. A value equal to `deciding` alone decides the result."""
    cdef int64_t deciding = kind == OR
    if (left.type != IS_NULL and left.whole == deciding) or (right.type != IS_NULL and right.whole == deciding):
        left.type = IS_BOOLEAN
        left.whole = deciding
    elif left.type == IS_NULL or right.type == IS_NULL:
        left.type = IS_NULL
    else:
        left.whole = 1 - deciding


# ------------------------------------------------------------------------------------------------------------- running


cdef bint _run(const filter_program* program, const filter_text* found) except -1 nogil:
    cdef value[STACK + 1] stack  # item 0 stays unused: `top` of an empty stack points to it
    cdef value* top = &stack[0]
    cdef const filter_step* step
    cdef int32_t at = 0
    while at < program.steps_count:
        step = program.steps + at
        at += 1
        if step.kind <= PUSH_TEXT:
            top += 1
            top.whole = step.whole
            top.real = step.real
            if step.kind == PUSH_PROPERTY:
                top.text = found[step.first].text
                top.text_len = found[step.first].length
                top.type = IS_TEXT if top.text != NULL else IS_NULL
            elif step.kind == PUSH_TEXT:
                top.text = step.text
                top.text_len = step.text_len
                top.type = IS_TEXT
            elif step.kind == PUSH_NULL:
                top.type = IS_NULL
            elif step.kind == PUSH_INT:
                top.type = IS_INT
            elif step.kind == PUSH_LONG:
                top.type = IS_LONG
            elif step.kind == PUSH_DOUBLE:
                top.type = IS_DOUBLE
            else:
                top.type = IS_BOOLEAN
                top.whole = step.kind == PUSH_TRUE
        elif step.kind == SKIP_IF_FALSE:
            if top.type == IS_BOOLEAN and not top.whole:
                at = step.first
        elif step.kind == SKIP_IF_TRUE:
            if top.type == IS_BOOLEAN and top.whole:
                at = step.first
        elif step.kind == AND or step.kind == OR:
            top -= 1
            _three_valued(step.kind, top, top + 1)
        elif step.kind == NEGATE:
            _negate(top)
        elif step.kind == NOT:
            top.whole = not top.whole  # NULL does not use `whole`
        elif step.kind == CAST:
            if top.type != IS_NULL and top.type != IS_BOOLEAN:
                top.type = IS_BOOLEAN
                top.whole = 0
        elif step.kind == IN_LIST:
            if top.type == IS_TEXT:
                top.whole = _listed(program.texts + step.first, step.count, top) != (step.whole != 0)
                top.type = IS_BOOLEAN
            else:
                top.type = IS_NULL
        else:
            top -= 1
            if not _compare(step.kind, top, top + 1):
                return False
    return top.type == IS_BOOLEAN and top.whole != 0


cdef void _find(const filter_program* program, const uint8_t* properties, int length,
                filter_text* found) noexcept nogil:
    """Finds the values of the program's properties. The text is NULL if the record does not have the property."""
    cdef property_view pair
    cdef const uint8_t* at = properties
    cdef const uint8_t* end = properties + length
    cdef int i
    for i in range(program.names_count):
        found[i].text = NULL
        found[i].length = 0
    while property_next(&at, end, &pair):
        for i in range(program.names_count):
            if program.names[i].length == pair.name_len \
                    and same_text(program.names[i].text, pair.name, pair.name_len):
                found[i].text = pair.value  # the last pair of a name wins
                found[i].length = pair.value_len
                break


cdef bint _is_ascii(const filter_text* found, int count) noexcept nogil:
    cdef uint8_t bits = 0
    cdef int i, at
    for i in range(count):
        for at in range(found[i].length):
            bits |= found[i].text[at]
    return bits < 0x80


cdef bint _matches_text(const filter_program* program, const uint8_t* properties, int length) except -1 with gil:
    """For values with characters beyond ASCII. Invalid UTF-8 compares as U+FFFD, as in Java."""
    cdef filter_text[NAMES_MAX] found
    cdef bytes text = (<const char*>properties)[:length].decode("utf-8", "replace").encode()
    _find(program, <const uint8_t*>PyBytes_AS_STRING(text), <int>PyBytes_GET_SIZE(text), &found[0])
    return _run(program, &found[0])


cdef bint filter_matches(const filter_program* program, const uint8_t* properties, int length) except -1 nogil:
    cdef filter_text[NAMES_MAX] found
    _find(program, properties, length, &found[0])
    if not _is_ascii(&found[0], program.names_count):
        return _matches_text(program, properties, length)
    return _run(program, &found[0])


cdef inline bint _contains_one(const filter_program* program, const record_view* v) noexcept nogil:
    cdef const filter_text* text = program.contained
    cdef int i
    for i in range(program.contained_count):
        if find_bytes(v.body, v.body_len, text[i].text, text[i].length) != NULL \
                or find_bytes(v.properties, v.properties_len, text[i].text, text[i].length) != NULL:
            return True
    return v.sys_flag & SYS_FLAG_COMPRESSED != 0


cdef bint filter_takes(const filter_program* program, const record_view* v) except -1 nogil:
    if program.contained_count and not _contains_one(program, v):
        return False
    return filter_matches(program, v.properties, v.properties_len)


# ---------------------------------------------------------------------------------------------------------- for Python


@cython.auto_pickle(False)
@cython.final
cdef class FilterProgram:
    """The steps of an expression: (kind, first, number, text or texts). `names` are the properties that they use. A
    record must also contain one of the texts `contained`, if there are any.

    The compiler of expressions checks the expression. This class checks the steps against the bounds of the stack
    machine.
    """

    def __cinit__(self, list names not None, list steps not None, tuple contained not None=()):
        cdef int i
        cdef int32_t depth = 0
        cdef filter_step* step
        cdef int lists = sum([len(item[3]) for item in steps if item[0] == IN_LIST])
        if len(names) > NAMES_MAX or not steps:
            raise ValueError(f"{len(names)} properties (at most {NAMES_MAX}) and {len(steps)} steps (at least 1)")
        self.held = []
        self.steps = <filter_step*>PyMem_Calloc(len(steps), sizeof(filter_step))
        self.names = <filter_text*>PyMem_Calloc(len(names) + 1, sizeof(filter_text))
        self.texts = <filter_text*>PyMem_Calloc(lists + 1, sizeof(filter_text))
        if self.steps == NULL or self.names == NULL or self.texts == NULL:
            raise MemoryError
        self.contained = <filter_text*>PyMem_Calloc(len(contained) + 1, sizeof(filter_text))
        if self.contained == NULL:
            raise MemoryError
        for i in range(<int>len(contained)):
            self._hold(contained[i], &self.contained[i])
        self.c.contained, self.c.contained_count = self.contained, <int32_t>len(contained)
        for i in range(<int>len(names)):
            self._hold(names[i], &self.names[i])
        self.c.names_count = <int32_t>len(names)
        self.c.steps_count = <int32_t>len(steps)
        self.c.steps, self.c.names, self.c.texts = self.steps, self.names, self.texts
        lists = 0
        depths = []  # values on the stack before each step
        for i in range(<int>len(steps)):
            depths.append(depth)
            step = self.steps + i
            kind, first, number, text = steps[i]
            if not 0 <= kind < KINDS:
                raise ValueError(f"step {i} has an unknown kind: {kind}")
            step.kind, step.first = kind, first
            lists = self._operand(step, number, text, lists)
            depth += _grows(step.kind)
            if not 1 <= depth <= STACK:
                raise ValueError(f"step {i} leaves {depth} values on the stack, not 1 to {STACK}")
            if step.kind == PUSH_PROPERTY and not 0 <= step.first < self.c.names_count:
                raise ValueError(f"step {i} names property {first}, which does not exist")
        depths.append(depth)
        for i in range(<int>len(steps)):
            step = self.steps + i
            if (step.kind == SKIP_IF_FALSE or step.kind == SKIP_IF_TRUE) and (
                    not i < step.first <= self.c.steps_count or depths[step.first] != depths[i]):
                raise ValueError(f"step {i} cannot skip to step {step.first}")
        if depth != 1:
            raise ValueError(f"the steps leave {depth} values on the stack, not 1")

    cdef int _operand(self, filter_step* step, number, text, int lists) except -1:
        """Sets a step's operand; returns the number of texts in all lists so far."""
        cdef filter_text operand
        if step.kind == PUSH_DOUBLE:
            step.real = number
        elif step.kind == PUSH_INT or step.kind == PUSH_LONG or step.kind == IN_LIST:
            step.whole = number
        if step.kind == PUSH_TEXT:
            self._hold(text, &operand)
            step.text, step.text_len = operand.text, operand.length
        elif step.kind == IN_LIST:
            step.first = lists
            step.count = <int32_t>len(text)
            for item in sorted(text, key=lambda item: (len(item), item)):
                self._hold(item, &self.texts[lists])
                lists += 1
        return lists

    cdef int _hold(self, bytes text, filter_text* to) except -1:
        if text is None:
            raise ValueError("a text is missing")
        self.held.append(text)
        to.text = <const uint8_t*>PyBytes_AS_STRING(text)
        to.length = <int>PyBytes_GET_SIZE(text)
        return 0

    def __dealloc__(self):
        PyMem_Free(self.steps)
        PyMem_Free(self.names)
        PyMem_Free(self.texts)
        PyMem_Free(self.contained)

    def matches(self, bytes properties not None):
        """Whether the expression is TRUE for a property string."""
        return bool(filter_matches(&self.c, <const uint8_t*>PyBytes_AS_STRING(properties),
                                   <int>PyBytes_GET_SIZE(properties)))

    def matches_message(self, Message message not None):
        """The same for a stored message."""
        cdef record_view view
        if message.source is None:
            raise ValueError("a message to be put has no stored properties")
        view = message_view(message)
        return bool(filter_takes(&self.c, &view))


cdef int _grows(int kind) noexcept:
    """The number of values that a step adds to the stack."""
    if kind <= PUSH_TEXT:
        return 1
    if kind == AND or kind == OR or EQUAL <= kind <= LESS_EQUAL:
        return -1
    return 0
