package main
import ("testing";"os";"strings";"fmt")
func TestX(t *testing.T){
 q,_:=os.ReadFile("../../migrations/000002_queue.up.sql"); p,_:=os.ReadFile("../../migrations/000001_foundation.up.sql")
 for _,m:=range all { for i,e:=range m.edits { if e.file==queue { c,_:=os.ReadFile("../../"+e.file); if n:=strings.Count(string(c),e.old); n!=1 {fmt.Println("Q",n,m.name,i,e.old)}; _=q } else if e.file==protocol { a,b:=strings.Count(string(q),e.old),strings.Count(string(p),e.old); fmt.Printf("%d/%d  %s [%d]\n",a,b,m.name,i)} else { c,_:=os.ReadFile("../../"+e.file); if n:=strings.Count(string(c),e.old); n!=1 {fmt.Println("GO",n,e.file,m.name,i)}} } }
}
