/* CRC-32C by the crc32c package's kernel, CRC-32 by zlib. The import chooses the kernel for the CPU. */
#ifndef CYSTORE_CHECKSUM_H
#define CYSTORE_CHECKSUM_H

#include <stdint.h>
#include <zlib.h>

#include "checkarm.h"
#include "checksse42.h"
#include "crc32c.h"
#include "crc_copy.h"

/* The kernel's sources read this variable. The package defines it in its Python wrapper, which we do not compile. */
int is_big_endian = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

static crc_function crc32c_kernel = _crc32c_sw_slicing_by_8;

static inline const char *crc32c_choose(void) {
    if (crc_portable_wanted()) return "portable";
#if defined(IS_INTEL)
    if (_crc32c_intel_probe()) {
        crc32c_init_hw_adler();
        crc32c_kernel = _crc32c_hw_adler;
        return "sse4.2";
    }
#elif defined(IS_ARM) && defined(__linux__)
    if (_crc32c_arm64_probe()) {
        crc32c_kernel = _crc32c_hw_arm64;
        return "arm64";
    }
#endif
    return "portable";
}

#endif
