/* Memoryviews of message bodies. The view of a message that is gone becomes the view of a later one, if no program has
 * it: to make and to free a memoryview costs as much as to verify the record.
 *
 * A spare view is in the state of `memoryview.release()`, without its buffer, so it keeps no file mapped. The header of
 * CPython 3.11 to 3.13 declares the fields that are used here; with any other interpreter each view is a new one. */
#ifndef CYSTORE_BODY_VIEW_H
#define CYSTORE_BODY_VIEW_H

#include <Python.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED) && !defined(PYPY_VERSION)
#define BODY_VIEWS_KNOWN 1
#else
#define BODY_VIEWS_KNOWN 0
#endif

#define BODY_VIEWS_MAX 64 /* a batch, and the one before it */

static inline void body_view_narrow(PyObject *view, const uint8_t *start, Py_ssize_t length) {
    Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    buffer->buf = (void *)start;
    buffer->len = buffer->shape[0] = length;
}

#if BODY_VIEWS_KNOWN
static PyObject *body_views[BODY_VIEWS_MAX];
static int body_view_count;

/* A spare view that begins to be one of the buffer of `whole`, which is a view of bytes, too; NULL: there is none. */
static inline PyObject *body_view_reused(PyObject *whole) {
    const PyMemoryViewObject *from = (const PyMemoryViewObject *)whole;
    PyMemoryViewObject *view;
    if (body_view_count == 0 || !PyMemoryView_Check(whole) || from->flags & _Py_MEMORYVIEW_RELEASED) return NULL;
    view = (PyMemoryViewObject *)body_views[--body_view_count];
    if (Py_REFCNT(view) != 1 || view->weakreflist != NULL) { /* a program found it through the garbage collector */
        Py_DECREF(view);
        return NULL;
    }
    Py_INCREF(from->mbuf);
    view->mbuf = from->mbuf;
    view->mbuf->exports++;
    view->flags &= ~_Py_MEMORYVIEW_RELEASED;
    view->hash = -1;
    view->view.obj = from->view.obj;
    return (PyObject *)view;
}

/* Gives back a view that `body_view` made. It becomes a spare one if nothing else refers to it or to its bytes, and if
 * its buffer has another view: then to leave the buffer runs no code. */
static inline void body_view_free(PyObject *object) {
    PyMemoryViewObject *view = (PyMemoryViewObject *)object;
    if (body_view_count == BODY_VIEWS_MAX || Py_REFCNT(object) != 1 || view->exports != 0 ||
        view->weakreflist != NULL || view->flags & _Py_MEMORYVIEW_RELEASED || view->mbuf->exports < 2 ||
        Py_REFCNT(view->mbuf) < 2) {
        Py_DECREF(object);
        return;
    }
    view->flags |= _Py_MEMORYVIEW_RELEASED;
    view->mbuf->exports--;
    Py_CLEAR(view->mbuf);
    view->view.obj = NULL;
    body_view_narrow(object, NULL, 0);
    body_views[body_view_count++] = object;
}
#else
static inline PyObject *body_view_reused(PyObject *whole) { return (void)whole, NULL; }
static inline void body_view_free(PyObject *object) { Py_DECREF(object); }
#endif

/* A new reference to a memoryview of some bytes of `source`. It narrows a view of the whole: a slice would make three
 * more objects. */
static inline PyObject *body_view(PyObject *source, const uint8_t *start, Py_ssize_t length) {
    PyObject *view = body_view_reused(source);
    if (view == NULL) view = PyMemoryView_FromObject(source);
    if (view != NULL) body_view_narrow(view, start, length);
    return view;
}

#endif
