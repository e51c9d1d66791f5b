/* The table has a 1 for each byte that a topic may have (TopicValidator.checkTopic). */
#ifndef CYSTORE_TOPIC_BYTES_H
#define CYSTORE_TOPIC_BYTES_H

#include <stdint.h>

static const uint8_t topic_bytes[256] = {
    ['%'] = 1, ['-'] = 1, ['_'] = 1, ['|'] = 1, ['0' ... '9'] = 1, ['A' ... 'Z'] = 1, ['a' ... 'z'] = 1,
};

#endif
