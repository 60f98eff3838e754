// A queue by gomemcache: `client PORT QUEUE`. A line for each operation.
package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	queue := os.Args[2]
	client := memcache.New("127.0.0.1:" + os.Args[1])
	odd := []byte{}
	for value := 0; value < 256; value++ {
		odd = append(odd, byte(value))
	}
	odd = append(odd, "\r\nflush_all\r\n"...)

	set := func(data []byte) bool { return client.Set(&memcache.Item{Key: queue, Value: data}) == nil }
	get := func(key string) string {
		item, problem := client.Get(key)
		if problem == memcache.ErrCacheMiss {
			return "none"
		} else if problem != nil {
			return problem.Error()
		}
		return string(item.Value)
	}
	say := func(operation string, well bool) {
		outcome := "failed"
		if well {
			outcome = "ok"
		}
		fmt.Println(operation, outcome)
	}
	large := bytes.Repeat([]byte("x"), 200000)
	say("set", set([]byte("hello")))
	fmt.Println("get", get(queue))
	fmt.Println("empty", get(queue))
	say("large", set(large) && get(queue) == string(large))
	say("any-bytes", set(odd) && get(queue) == string(odd))
	say("reliable", set([]byte("job")) && get(queue+"/open") == "job")
	fmt.Println("close", get(queue+"/close"))
	say("delete", client.Delete(queue) == nil)
}
